"""The first moments of ``zfabric``, the command: while it is being loaded, Ctrl-C ends it without a word, and not with our traceback.

Loading takes a tenth of a second, and nothing of ours listens before its end. So this is imported before all the rest. Programs that
import ``zfabric``, under whatever other name, keep what they do at Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

LOADING = (
    os.path.basename(getattr(sys, "argv", [""])[0]) == "zfabric"
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if LOADING:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def over() -> None:
    """The command listens: Ctrl-C is KeyboardInterrupt again."""
    if LOADING:
        signal.signal(signal.SIGINT, signal.default_int_handler)
