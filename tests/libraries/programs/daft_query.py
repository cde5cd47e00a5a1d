"""Daft, with its runner for Ray: reads Parquet, repartitions, groups, joins, sorts, and runs a function of the program."""

import tempfile
import time

import numpy as np
import outcome
import pyarrow as pa
import pyarrow.parquet as pq
import ray

ray.init(num_cpus=2)

import daft

ROWS, FILES, KEYS = 400_000, 4, 20
MEASURED = 3


@daft.func
def increased(number: int) -> int:
    """One more."""
    return number + 1


def query(source):
    """Sums of values by key, joined with names."""
    names = daft.from_pydict({"key": list(range(KEYS)), "name": [f"key {number}" for number in range(KEYS)]})
    frame = daft.read_parquet(f"{source}/*.parquet").with_column("key", increased(daft.col("id")) % KEYS)
    summed = frame.where(daft.col("id") >= 100).repartition(4, "key").groupby("key").agg(daft.col("value").sum())
    return summed.join(names, on="key").sort("key").to_pydict()


def main():
    """Run the query four times; the last three are measured."""
    daft.set_runner_ray()
    with tempfile.TemporaryDirectory() as source:
        ids = np.arange(ROWS)
        for number, part in enumerate(np.array_split(ids, FILES)):
            pq.write_table(pa.table({"id": part, "value": part * 2}), f"{source}/{number}.parquet")
        query(source)
        begun = time.perf_counter()
        for _ in range(MEASURED):
            found = query(source)
        taken = time.perf_counter() - begun
    kept = ids[100:]
    assert found["key"] == list(range(KEYS))
    assert found["name"] == [f"key {number}" for number in range(KEYS)]
    assert found["value"] == [int((kept[(kept + 1) % KEYS == key] * 2).sum()) for key in range(KEYS)], found["value"]
    ray.shutdown()
    outcome.report(MEASURED * ROWS, taken, "rows/s")


main()
