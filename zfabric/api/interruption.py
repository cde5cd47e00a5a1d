"""What a program shows that Ctrl-C ends: the program's own lines, and nothing of the fabric."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from zfabric.runtime.lines import ZFABRIC

_CHAIN_MAX = 100
"""Most exceptions of a chain of contexts whose frames are looked at."""


def install() -> None:
    """Leave the fabric's frames out of the traceback of an uncaught KeyboardInterrupt. Other errors, and other hooks, stay as they are."""
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


def is_interrupted() -> bool:
    """Whether KeyboardInterrupt is being handled, or has ended the program: failures that it did not read are of no interest then."""
    ended = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # At a prompt, the program goes on.
    return isinstance(sys.exc_info()[1] or ended, KeyboardInterrupt)


class _Hook:
    """A ``sys.excepthook`` that calls the former one."""

    def __init__(self, former: Any) -> None:
        self._former = former

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            each: BaseException | None = error
            for _ in range(_CHAIN_MAX):
                if each is None:
                    break
                each.__traceback__ = of_program(each.__traceback__)
                each = each.__cause__ or each.__context__
            trace = of_program(trace)
        self._former(kind, error, trace)


def of_program(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of the fabric and of what it calls; frames of the program that it calls remain."""
    import sysconfig  # Only an interrupted program needs it.

    installed = {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    called = (ZFABRIC, *installed, "<frozen ", "zmq/")
    kept, inside = [], False
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        inside = path.startswith(called) if inside else path.startswith(ZFABRIC)
        if not inside:
            kept.append(trace)
        trace = trace.tb_next
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found
