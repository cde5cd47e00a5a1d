"""A shuffle: count the words of many files. Each task of the first kind reads a file and splits its words into parts; each of the second
kind adds up one part of all files.

    zfabric submit docs/examples/shuffle.py docs/*.md

A word must get the same part in every process. ``hash`` of a str does not do that: Python salts it anew for each program, so that
it differs between this one and its workers. ``zlib.crc32`` is the same everywhere.
"""

import argparse
import re
import zlib
from collections import Counter
from pathlib import Path

import zfabric as zf


@zf.remote
def split(path: str, parts: int) -> list[Counter[str]]:
    """The words of a file, counted, in as many parts as there are tasks to add them up."""
    counts = [Counter[str]() for _ in range(parts)]
    for word in re.findall(r"[a-z]+", Path(path).read_text(encoding="utf-8").lower()):
        counts[zlib.crc32(word.encode()) % parts][word] += 1
    return counts


@zf.remote
def add(*counts: Counter[str]) -> Counter[str]:
    """The words of one part, of all files."""
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total


def main() -> None:
    """Print the words that occur most often."""
    parser = argparse.ArgumentParser(prog="shuffle.py", description="Count the words of files.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="by default the examples")
    parser.add_argument("--parts", type=int, default=4, help="tasks that add up (default: %(default)s)")
    parser.add_argument("--words", type=int, default=10, help="words that are printed (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.parts < 2:
        parser.error("--parts is at least 2")

    files = arguments.files or list(map(str, Path(__file__).parent.glob("*.py")))
    zf.init(ignore_reinit_error=True)
    mapped = [split.options(num_returns=arguments.parts).remote(path, arguments.parts) for path in files]
    total = Counter[str]()
    for part in zf.get([add.remote(*column) for column in zip(*mapped, strict=True)]):
        assert not total.keys() & part.keys()  # each word is in one part
        total.update(part)
    for word, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))[: arguments.words]:
        print(f"{count:>8,}  {word}")


if __name__ == "__main__":
    main()
