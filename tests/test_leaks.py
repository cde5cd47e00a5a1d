"""A few cycles of each kind of the soak: clusters begun, hurt and ended leave everything where it was."""

from __future__ import annotations

import pytest
import soak

CYCLES = {"start": 4, "kill": 2, "driver": 2, "daemon": 6, "worker": 6}


@pytest.mark.parametrize("kind", [*soak.WHOLE, *soak.WITHIN])
def test_cycles_leave_processes_descriptors_memory_and_files_where_they_were(kind: str) -> None:
    soak.zf.shutdown()
    assert soak.run(kind, CYCLES[kind]) == []
