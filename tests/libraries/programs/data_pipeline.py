"""Data: reads and writes Parquet, maps batches with tasks and with actors, shuffles, sorts, groups, zips, unites, streams batches."""

import tempfile
import time
from pathlib import Path

import numpy as np
import outcome
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from ray.data.aggregate import Mean, Sum
from ray.data.expressions import col

ROWS, FILES, KEYS = 400_000, 8, 10


class Scale:
    """A model in an actor: multiplies by what it was made with."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, batch):
        return {**batch, "scaled": batch["value"] * self.factor}


def pipeline(source):
    """Read, map by tasks, map by actors, filter."""
    return (
        ray.data.read_parquet(source)
        .map_batches(lambda batch: {**batch, "key": batch["id"] % KEYS})
        .map_batches(Scale, fn_constructor_args=(3.0,), batch_size=10_000, compute=ray.data.ActorPoolStrategy(size=1))
        .filter(expr=col("key") != 0)
    )


def main():
    """Check every operation on small numbers, and measure the pipeline."""
    ray.init(num_cpus=2)
    ray.data.DataContext.get_current().enable_progress_bars = False
    root = Path(tempfile.mkdtemp(prefix="programs-data-"))
    source = root / "source"
    source.mkdir()
    ids = np.arange(ROWS)
    for number, part in enumerate(np.array_split(ids, FILES)):
        pq.write_table(pa.table({"id": part, "value": part / 2, "other": np.sin(part)}), source / f"{number}.parquet")

    pipeline(str(source)).materialize()
    begun = time.perf_counter()
    done = pipeline(str(source)).materialize()
    taken = time.perf_counter() - begun

    kept = ids[ids % KEYS != 0]
    assert done.count() == len(kept), done.count()
    assert done.size_bytes() > len(kept) * 8, done.size_bytes()
    assert done.sum("scaled") == (kept / 2 * 3).sum()

    grouped = {row["key"]: row for row in done.groupby("key").aggregate(Sum("id"), Mean("value")).take_all()}
    assert grouped.keys() == set(range(1, KEYS))
    for key, row in grouped.items():
        mine = kept[kept % KEYS == key]
        assert row["sum(id)"] == mine.sum() and abs(row["mean(value)"] - mine.mean() / 2) < 1e-6, row

    small = ray.data.range(10_000, override_num_blocks=8)
    shuffled = [row["id"] for row in small.random_shuffle(seed=1).take_all()]
    assert shuffled != sorted(shuffled) and sorted(shuffled) == list(range(10_000))
    assert [row["id"] for row in small.random_shuffle(seed=2).sort("id", descending=True).take(5)] == [9999, 9998, 9997, 9996, 9995]
    squares = ray.data.range(100).map(lambda row: {"square": row["id"] ** 2})
    zipped = ray.data.range(100).zip(squares).union(ray.data.range(10).add_column("square", lambda frame: frame["id"] ** 2))
    rows = zipped.take_all()
    assert len(rows) == 110 and all(row["square"] == row["id"] ** 2 for row in rows), rows
    assert small.repartition(3).materialize().num_blocks() == 3

    done.write_parquet(str(root / "target"))
    again = ray.data.read_parquet(str(root / "target"))
    assert again.count() == len(kept) and again.max("scaled") == kept[-1] / 2 * 3
    batches = [batch["id"] for batch in again.iter_batches(batch_size=50_000)]
    assert [len(batch) for batch in batches[:-1]] == [50_000] * (len(batches) - 1) and sum(map(len, batches)) == len(kept)
    first, second = again.streaming_split(2, equal=True)
    counted = ray.get([count.remote(first), count.remote(second)])
    assert counted == [len(kept) // 2] * 2, counted
    ray.shutdown()
    outcome.report(ROWS, taken, "rows/s")


@ray.remote(num_cpus=0)
def count(iterator):
    """How many rows one consumer of a split dataset gets."""
    return sum(len(batch["id"]) for batch in iterator.iter_batches())


main()
