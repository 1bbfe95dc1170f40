"""Compares our allocator's decisions with PyTorch's, on the same GPU, for the same calls.

    python tests/gpu/side_by_side [--out FILE] [--jobs N] [--only NAME | --drawn COUNT [--seed N]]

Twenty seeded sequences. Each is run through PyTorch in a fresh process and recorded; the recorded calls are then made
to ours in another. Two comparisons:

    on the GPU    every trace entry of one against the other's, by segment and offset (decisions.py)
    replayed      the recording on a simulated device with PyTorch's own addresses, through `allotment conformance`:
                  trace, addresses, statistics and final segments must be equal, whatever the driver did

With --drawn, COUNT random sequences (drawn_sequences.py) are recorded and replayed; those that differ are listed. Exits
with 1 if anything differs that the order of the driver's addresses does not explain.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from decisions import Entry, compare, decisions
from drawn_sequences import drawn_sequence
from sequences import Sequence, all_sequences

from allotment.lab.conformance.run import check_file

HERE = Path(__file__).parent
PATIENCE_S = 60


def run(script: str, *arguments: str | Path, **environment: str) -> str:
    """Run one of our scripts in a new process; return its error, if any."""
    try:
        done = subprocess.run(
            [sys.executable, HERE / script, *arguments],
            env=os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": "32"} | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return f"{script} did not end in {PATIENCE_S} s"
    return "" if done.returncode == 0 else f"{script}: {done.stderr.strip()[-400:]}"


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        return json.load(file)


def expandable_range(total: int) -> int:
    """Return the least that an expandable segment reserves: an eighth more than the device has."""
    return total + total // 8


def compare_on_device(theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    size = expandable_range(theirs["total_memory"])
    recorded = [
        Entry(entry["action"], entry.get("addr", 0), entry["size"], entry["stream"]) for entry in theirs["trace"]
    ]
    verdict = compare(
        decisions(recorded, theirs["streams"], size),
        decisions((Entry(*entry) for entry in ours["trace"]), ours["streams"], size),
    )
    result: dict[str, Any] = {"status": verdict.status}
    if verdict.index is not None:
        result |= {"index": verdict.index, "expected": verdict.expected, "got": verdict.got}
    return result


def replay(path: Path, *, check_invariants: bool) -> dict[str, Any]:
    outcome = check_file(path, check_invariants=check_invariants)
    result: dict[str, Any] = {"status": outcome.status}
    if outcome.status != "equal":
        result |= {"op": outcome.op, "index": outcome.trace_index, "what": outcome.what,
                   "expected": str(outcome.expected), "got": str(outcome.got)}  # fmt: skip
    return result


def one_sequence(sequence: Sequence, folder: Path, *, on_gpu: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": sequence.name,
        "settings": sequence.settings,
        "limit": sequence.limit,
        "calls": 0,
        "decisions": 0,
        "on_gpu": {"status": "failed"},
        "replayed": {"status": "failed"},
    }
    recording, trace = folder / f"{sequence.name}.json.gz", folder / f"{sequence.name}.ours.gz"
    failure = run("through_torch.py", sequence.name, recording, PYTORCH_CUDA_ALLOC_CONF=sequence.settings)
    if failure:
        return result | {"failure": failure}
    theirs = read(recording)
    result |= {
        "calls": len(theirs["ops"]),
        "decisions": len(theirs["trace"]),
        "out_of_memory": sum("oom" in op for op in theirs["ops"]),
        "replayed": replay(recording, check_invariants=on_gpu),  # which takes seconds
    }
    if not on_gpu:
        return result | {"on_gpu": {"status": "not asked"}}
    failure = run("through_allotment.py", recording, trace)
    if failure:
        return result | {"failure": failure}
    return result | {"on_gpu": compare_on_device(theirs, read(trace))}


def print_table(results: list[dict[str, Any]]) -> None:
    print(f"{'sequence':<14}{'settings':<58}{'calls':>6}{'entries':>9}{'refused':>9}  {'on the GPU':<31}replayed")
    for each in results:
        limit = f" limit {each['limit'] >> 20} MiB" if each["limit"] else ""
        print(
            f"{each['name']:<14}{(each['settings'] or 'default') + limit:<58}{each['calls']:>6}{each['decisions']:>9}"
            f"{each.get('out_of_memory', 0):>9}  {each['on_gpu']['status']:<31}{each['replayed']['status']}"
        )
        for part in ("on_gpu", "replayed"):
            if "expected" in each[part]:
                print(f"    {part}: {each[part]}")
        if "failure" in each:
            print(f"    {each['failure']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    parser.add_argument("--jobs", type=int, default=min(6, os.cpu_count() or 1))
    parser.add_argument("--only", help="the sequence of this name alone")
    parser.add_argument("--drawn", type=int, metavar="COUNT", help="so many drawn sequences instead")
    parser.add_argument("--seed", type=int, default=1, help="the first of the drawn sequences")
    options = parser.parse_args()

    if options.drawn:
        chosen: list[Sequence] = [drawn_sequence(options.seed + index) for index in range(options.drawn)]
    else:
        chosen = [each for each in all_sequences() if options.only in (None, each.name)]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as workers:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = list(workers.map(lambda each: one_sequence(each, folder, on_gpu=not options.drawn), chosen))
    print_table([each for each in results if not options.drawn or each["replayed"]["status"] != "equal"])

    def count(part: str, status: str) -> int:
        return sum(each[part]["status"] == status for each in results)

    ordered = "addresses ordered differently"
    summary = {
        "sequences": len(results),
        "calls": sum(each["calls"] for each in results),
        "decisions": sum(each["decisions"] for each in results),
        "equal_on_gpu": count("on_gpu", "equal"),
        "addresses_ordered_differently": count("on_gpu", ordered),
        "equal_replayed": count("replayed", "equal"),
    }
    print(f"{summary['sequences']} sequences, {summary['calls']} calls, {summary['decisions']} decisions:", end=" ")
    if not options.drawn:
        print(f"on the GPU {summary['equal_on_gpu']} equal and", end=" ")
        print(f"{summary['addresses_ordered_differently']} with {ordered};", end=" ")
    print(f"replayed {summary['equal_replayed']} equal")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"summary": summary, "results": results}, indent=1) + "\n")
    explained = summary["equal_on_gpu"] + summary["addresses_ordered_differently"] + count("on_gpu", "not asked")
    return 0 if explained == summary["equal_replayed"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
