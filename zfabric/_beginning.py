"""The first moments of ``zfabric``, the command: while it is being loaded, Ctrl-C ends it without a word, and not with our traceback.

Loading takes a tenth of a second, and nothing of ours listens before its end. So this is imported before all the rest. Programs that
import ``zfabric``, under whatever other name, keep what they do at Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys


def _quiet() -> bool:
    """Whether this is the command, and Ctrl-C ends it at once from now on."""
    if os.path.basename(getattr(sys, "argv", [""])[0]) != "zfabric" or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:  # This is imported by a thread, and so it is no command.
        return False
    return True


LOADING = _quiet()


def over() -> None:
    """The command listens: Ctrl-C is KeyboardInterrupt again."""
    if LOADING:
        signal.signal(signal.SIGINT, signal.default_int_handler)
