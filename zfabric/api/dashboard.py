"""The page of a cluster, served by a process of its own while a program is connected (``zf.init(include_dashboard=True)``)."""

from __future__ import annotations

import importlib.util
import select
import subprocess
import sys

from zfabric.exceptions import ConfigError
from zfabric.runtime.connection import clock

START_SECONDS = 15.0
END_SECONDS = 2.0


class PageProcess:
    """A process that serves the page of the session in ``directory``. Raises ConfigError if it cannot."""

    def __init__(self, directory: str, host: str, port: int) -> None:
        missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"init: include_dashboard needs {' and '.join(missing)}: pip install 'zfabric[page]'")
        command = [sys.executable, "-m", "zfabric.page", directory, host, str(port)]
        # It ends when its standard input does, so also if this process is killed.
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline().decode().strip() if ready else ""
        if not line.startswith("http"):
            self.close()
            raise ConfigError(f"init: include_dashboard: {self._reason() or 'the page did not start'}")
        self.url = line

    def _reason(self) -> str:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = clock() + END_SECONDS
        try:
            self._process.wait(max(0.0, deadline - clock()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
