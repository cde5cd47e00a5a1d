"""Modin: frames in four partitions, grouped, sorted, merged, read and written, with the results of pandas."""

import os
import tempfile
import time
import warnings
from pathlib import Path

import outcome

os.environ.update(MODIN_ENGINE="ray", MODIN_CPUS="2", MODIN_NPARTITIONS="4")
warnings.filterwarnings("ignore")

import ray

ray.init(num_cpus=2)

import modin.pandas as modin
import numpy as np
import pandas

ROWS, KEYS = 400_000, 100


def work(library, columns, directory):
    """The same operations for both libraries; the results as plain values."""
    frame = library.DataFrame(columns)
    grouped = frame.groupby("key").agg({"a": "mean", "b": "sum"})
    ordered = frame.sort_values("a")
    weights = library.DataFrame({"key": range(KEYS), "weight": [number / KEYS for number in range(KEYS)]})
    merged = frame.merge(weights, on="key")
    chosen = frame[frame["a"] > 0.5]
    mapped = frame["a"].map(lambda number: number * 2)
    path = Path(directory, f"{library.__name__}.csv")
    frame.head(50_000).to_csv(path, index=False)
    read = library.read_csv(path)
    return {
        "grouped": grouped["a"].sum() + grouped["b"].max(),
        "ordered": ordered["b"].iloc[0] - ordered["b"].iloc[-1],
        "merged": (merged["weight"] * merged["a"]).sum(),
        "chosen": len(chosen),
        "mapped": mapped.mean(),
        "described": frame.describe().loc["std", "b"],
        "read": read["a"].sum(),
    }


def main():
    """Run both, compare, and measure Modin's second time."""
    random = np.random.default_rng(0)
    columns = {"key": random.integers(0, KEYS, ROWS), "a": random.random(ROWS), "b": random.random(ROWS)}
    with tempfile.TemporaryDirectory() as directory:
        wanted = work(pandas, columns, directory)
        work(modin, columns, directory)
        begun = time.perf_counter()
        found = work(modin, columns, directory)
        taken = time.perf_counter() - begun
    for name, value in wanted.items():
        assert abs(found[name] - value) <= 1e-6 * abs(value), (name, found[name], value)
    ray.shutdown()
    outcome.report(ROWS, taken, "rows/s")


main()
