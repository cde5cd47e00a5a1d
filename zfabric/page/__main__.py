"""``python -m zfabric.page DIRECTORY HOST PORT``: serve a session's page until standard input ends.

Started by ``zf.init(include_dashboard=True)``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from zfabric.exceptions import FabricError
from zfabric.page.serving import serve
from zfabric.runtime.session import Session


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):  # A buffered file's lock would be held at exit.
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the server; return the exit status."""
    directory, host, port = sys.argv[1:]
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        serve(Session(directory), host, int(port), announce=lambda address: print(address, flush=True))
    except FabricError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
