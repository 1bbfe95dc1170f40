"""Records programs of PyTorch, each in a separate process. For `known_causes.py`, `kinds_agreement.py`."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WORKER = "--worker"
AT_ONCE = 5
SECONDS = 45.0
"""The time for all programs together."""
ENDING = ".pickle.gz"
SYMBOLS = {"TORCH_SYMBOLIZE_MODE": "dladdr"}
"""How PyTorch finds the names of compiled frames. Its default starts addr2line, which reads gigabytes of libraries."""


def start_recording() -> None:
    """Record PyTorch's history with all stacks."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="all")


def keep_snapshot(file: Path) -> None:
    """Write PyTorch's snapshot, compressed."""
    import torch

    plain = file.with_suffix("")
    torch.cuda.memory._dump_snapshot(str(plain))
    file.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()


def record_all(script: str, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Run a script's programs, which write to a folder. Returns the errors, by program."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + SECONDS

    def record(name: str) -> str | None:
        began = time.monotonic()
        file = folder / f"{name}{ENDING}"
        command = [sys.executable, script, WORKER, name, str(file)]
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                env={**SYMBOLS, **os.environ},
                timeout=max(end - began, 1),
            )
        except subprocess.TimeoutExpired:
            said = f"not done when all programs had taken {SECONDS:g} s"
        else:
            said = None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
        taken = f"{time.monotonic() - began:.1f} s"
        print(f"{name}: {taken}, " + (f"{file.stat().st_size:,} bytes" if said is None else "FAILED"), flush=True)
        if said is not None:
            print(said, file=sys.stderr, flush=True)
        return said

    with ThreadPoolExecutor(AT_ONCE) as pool:
        listed = list(names)
        return {name: said for name, said in zip(listed, pool.map(record, listed), strict=True) if said is not None}


def main(
    script: str,
    about: str,
    names: Iterable[str],
    record: Callable[[str, Path], None],
    tell: Callable[[str, Path], dict[str, Any]],
    table: Callable[[list[dict[str, Any]]], list[str]],
) -> int:
    """Run the command line of a script: record on a GPU and report, or report on earlier recordings.

    `tell` returns a row with `ok`, `table` makes lines of Markdown of all rows that it returned.
    """
    if sys.argv[1:2] == [WORKER]:
        record(sys.argv[2], Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of recordings and results")
    parser.add_argument("--recorded", action="store_true", help="record nothing: tell of what FOLDER has; needs no GPU")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"all unless given: {', '.join(names)}")
    chosen = parser.parse_args()
    unknown = set(chosen.programs) - set(names)
    if unknown:
        parser.error(f"there is no program {', '.join(sorted(unknown))}")
    listed = chosen.programs or list(names)
    failed = {} if chosen.recorded else record_all(script, chosen.out, listed)
    rows: list[dict[str, Any]] = []
    for name in listed:
        row: dict[str, Any] = {"program": name, "ok": False}
        file = chosen.out / f"{name}{ENDING}"
        if name in failed:
            row["error"] = "not recorded: " + failed[name].splitlines()[-1]
        elif not file.exists():
            row["error"] = f"{file} does not exist"
        else:
            try:
                row |= tell(name, file)
            except Exception as problem:  # an error of one program must not lose the others' results
                traceback.print_exc()
                row["error"] = f"{type(problem).__name__}: {problem}"
        rows.append(row)
    lines = table([row for row in rows if "error" not in row])
    lines += [f"- {row['program']}: {row['error']}" for row in rows if "error" in row]
    (chosen.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    (chosen.out / "results.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if all(row["ok"] for row in rows) else 1
