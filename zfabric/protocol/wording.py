"""How times, sizes and counts are written for people: one wording for the command line, explanations and the page."""

from __future__ import annotations

from zfabric.protocol.options import MEMORY, STORE_MEMORY


def span(seconds: float) -> str:
    """A time span.

    >>> span(0.0123), span(7.25), span(150), span(4000), span(10**6)
    ('12 ms', '7.2 s', '2 min', '1 h 6 min', '11 days')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def size(count: float) -> str:
    """A number of bytes.

    >>> size(100), size(8_000_000), size(3 * 2**40)
    ('100 B', '7.6 MiB', '3072 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def quantity(name: str, amount: float) -> str:
    """An amount of a resource; of memory, in units of bytes.

    >>> quantity("CPU", 0.5), quantity("memory", 2**31)
    ('0.5 CPU', '2.0 GiB memory')
    """
    return f"{amount_text(name, amount)} {name}"


def amount_text(name: str, amount: float) -> str:
    """An amount of a resource without the resource's name.

    >>> amount_text("CPU", 2.0), amount_text("memory", 2**31)
    ('2', '2.0 GiB')
    """
    return size(amount) if name in (MEMORY, STORE_MEMORY) else f"{amount:g}"


def counted(number: int, one: str, several: str = "") -> str:
    """A number of things; ``several`` is ``one`` with an s unless it is given.

    >>> counted(1, "call"), counted(2000, "call"), counted(2, "process", "processes")
    ('1 call', '2,000 calls', '2 processes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
