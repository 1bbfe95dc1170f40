"""How fast a PyTorch snapshot is read: entries a second, next to gzip and pickle.load in the same run.

    python benchmarks/read_snapshot.py SNAPSHOT [--rounds N]

The two take turns and the best round of each counts, so that a busy machine disturbs both alike. pickle.load is what
one would use for a trusted file; it ends in dicts, which a tool then still has to turn into columns.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allotment._formats.torch_snapshot import read_snapshot


def load_with_pickle(path: Path) -> Any:
    """Runs whatever the pickle says: only for files of one's own."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        return pickle.load(gzip.open(file) if packed else file)


def seconds(action: Callable[[Path], Any], path: Path) -> float:
    gc.collect()
    started = time.perf_counter()
    result = action(path)
    elapsed = time.perf_counter() - started
    del result
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    entries = sum(len(trace) for trace in read_snapshot(arguments.snapshot).traces)
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(seconds(read_snapshot, arguments.snapshot))
        theirs.append(seconds(load_with_pickle, arguments.snapshot))
    print(f"{entries} entries, best of {arguments.rounds} rounds")
    print(f"read_snapshot       {entries / min(ours) / 1e6:6.2f} million entries/s")
    print(f"gzip + pickle.load  {entries / min(theirs) / 1e6:6.2f} million entries/s")
    print(f"ratio               {min(theirs) / min(ours):6.2f}")


if __name__ == "__main__":
    main()
