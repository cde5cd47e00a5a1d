"""Data sorts more than the object store holds: data_sort.py MIB. The order is checked, and the memory of all processes is bounded."""

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import ray
import ray.data

STORE = 512 * 2**20
BOUND = 6 * 2**30
"""Most bytes of all processes together, the store among them, for 4 GiB. The heaps of the two workers that sort are the most of it."""
ROW, COLUMNS = 128, 15
BLOCK = 32 * 2**20
FACTOR = 0x9E3779B1
"""Odd: multiplied by it, the numbers below a power of two are these numbers in another order."""


class Memory(threading.Thread):
    """Notes the largest memory of this process and its descendants: what the kernel cannot take back, with the object store.

    Pages that several processes share count once. Pages of spilled files do not count, which workers read where they are.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.largest = 0
        self.ended = threading.Event()

    def run(self):
        own = psutil.Process()
        while not self.ended.wait(1):
            self.largest = max(self.largest, sum(map(memory_of, (own, *own.children(recursive=True)))))


def memory_of(process):
    """Bytes of anonymous and shared memory of one process; 0 if it has ended."""
    try:
        rows = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith(("Pss_Anon", "Pss_Shmem")))


def main(size):
    """Sort ``size`` bytes, a power of two."""
    rows = size // ROW
    assert rows & (rows - 1) == 0, "a power of two, in MiB"
    ray.init(num_cpus=2, object_store_memory=STORE)
    ray.data.DataContext.get_current().enable_progress_bars = False
    memory = Memory()
    memory.start()

    def fill(batch):
        keys = (batch["id"] * FACTOR) & (rows - 1)
        return {"key": keys, **{f"column{number}": keys * (number + 0.5) for number in range(COLUMNS)}}

    begun = time.perf_counter()
    data = ray.data.range(rows, override_num_blocks=size // BLOCK).map_batches(fill, batch_size=None).sort("key")
    at = 0
    for batch in data.iter_batches(batch_size=None):
        keys = batch["key"]
        assert np.array_equal(keys, np.arange(at, at + len(keys))), f"the order is wrong behind row {at:,}"
        assert np.array_equal(batch["column7"], keys * 7.5)
        at += len(keys)
    assert at == rows, f"{at:,} rows of {rows:,}"
    seconds = time.perf_counter() - begun
    memory.ended.set()
    memory.join()
    ray.shutdown()
    assert memory.largest < BOUND, f"{memory.largest / 2**20:,.0f} MiB of memory were in use"
    print(f"at most {memory.largest / 2**20:,.0f} MiB of memory were in use")
    print(json.dumps({"program": "data_sort", "seconds": seconds, "rate": size / 2**20 / seconds, "unit": "MiB/s"}))


main(int(sys.argv[1]) << 20)
