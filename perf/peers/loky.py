"""loky: the processes that joblib starts by itself. The floor of what joblib does on a cluster."""

from __future__ import annotations

from perf.peers import System


class Loky(System):
    """As many processes as workers; they start with the first calls."""

    name = "loky"

    def start(self, workers: int) -> None:
        """Choose the number of processes."""
        self.joblib = {"backend": "loky", "n_jobs": workers}

    def stop(self) -> None:
        """End them, and the process that watches over their files."""
        from joblib.externals.loky import get_reusable_executor
        from joblib.externals.loky.backend.resource_tracker import _resource_tracker

        get_reusable_executor().shutdown(wait=True, kill_workers=True)
        _resource_tracker._stop()
