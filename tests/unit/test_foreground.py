"""What ``zfabric start --block`` does at signals, without a node."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from faults import PATIENCE

from zfabric.runtime import foreground


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers of this process as before, at the end."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGALRM)]
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number, handler in before:
        signal.signal(number, handler)


class _Finalized:
    def __del__(self) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            foreground.AGAIN_SECONDS = PATIENCE  # What comes again soon is to come once: a third time would end the run of tests.


@pytest.mark.usefixtures("handlers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_finalizer_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreground, "AGAIN_SECONDS", 0.2)
    signal.signal(signal.SIGINT, foreground.raises(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # It may come again at any moment from now on.
        _Finalized()  # Python prints the exception, and goes on.
        time.sleep(PATIENCE)
