"""What malloc and free cost and how threads scale, in this tree and an earlier one, on a machine with many cores.

    python benchmarks/many_cores.py --pack [--before fd7c9b6] [--python PREFIX --built TREE]
    python benchmarks/many_cores.py --out FOLDER [--seconds 230]

The first command makes the kit, build/kit.tar.gz, for a machine that has no network: the sources of the earlier tree,
and, if given, a free-threaded Python (the folder it is installed in) with the compiled package of a tree that it built,
and with NumPy of that tree's `.venv`. The second builds both trees, and measures, part after part: `hot_path.py` in
turns, `threads.py` for this tree and without the interpreter lock, `allotment bench` five times in turns, `threads.py`
for the earlier tree. FOLDER has a file for each part, and FOLDER/summary.md says how each ended; a part for which the
time is too short is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TURNS = 5
# The earlier tree gets this tree's loops, which take a stream for each thread.
LOOPS = ("src/allotment/lab/bench/hot_path.pyx", "src/allotment/lab/bench/hot_path.pyi")
NOT_NEEDED = ("test", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "pydoc_data", "site-packages")
BENCH = """
import json
from allotment.lab.bench.run import run
print(json.dumps({figure.name: figure.value for figure in run(rounds=3, pairs=50_000)}))
"""


# --- the kit -------------------------------------------------------------------------------------------------


def pack(file: Path, revision: str, python: Path | None, built: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), revision, python, built)
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-czf", file, "-C", folder, "."], check=True)


def fill(kit: Path, revision: str, python: Path | None, built: Path | None) -> None:
    before = kit / "before"
    before.mkdir()
    names = ["src", "setup.py", "pyproject.toml", "tools", "README.md"]
    archive = subprocess.run(["git", "archive", revision, *names], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x"], cwd=before, check=True, input=archive.stdout)
    for name in LOOPS:
        shutil.copy(ROOT / name, before / name)
    if python is not None and built is not None:
        pack_python(kit / "python", python, built / ".venv")
        shutil.copytree(built / "src", kit / "free-threaded", ignore=shutil.ignore_patterns("*.c", "*.cpp", "*.pyc"))
        strip(kit / "free-threaded")


def pack_python(place: Path, prefix: Path, environment: Path) -> None:
    program = min((prefix / "bin").glob("python3.*t"), key=lambda path: len(path.name))
    (place / "bin").mkdir(parents=True)
    shutil.copy(program, place / "bin" / "python")
    library = prefix / "lib" / program.name
    shutil.copytree(
        library,
        place / "lib" / program.name,
        ignore=shutil.ignore_patterns(*NOT_NEEDED, "config-*", "__pycache__", "*.a", "_test*.so", "xx*.so"),
    )
    packages = Path("lib") / program.name / "site-packages"
    for name in ("numpy", "numpy.libs"):
        tests = shutil.ignore_patterns("tests", "__pycache__", "*.a")
        shutil.copytree(environment / packages / name, place / packages / name, ignore=tests)
    strip(place)


def strip(place: Path) -> None:
    binary = [*place.rglob("*.so"), *place.glob("bin/python")]  # not numpy.libs, whose names have versions
    subprocess.run(["strip", "--strip-unneeded", *map(str, binary)], check=True)


# --- the measurements ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    name: str
    source: Path
    python: str = sys.executable

    def run(self, *arguments: str, seconds: float, output: Path | None = None) -> str:
        """Run Python with this tree's package; return what it prints, which `output` gets too."""
        environment = os.environ | {
            "PYTHONPATH": str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = [self.python, *arguments]
        done = subprocess.run(command, env=environment, timeout=seconds, stdout=subprocess.PIPE, text=True, check=True)
        if output is not None:
            output.write_text(done.stdout)
        return done.stdout


def build(trees: list[Tree], seconds: float) -> None:
    """Compile the trees in place, side by side."""
    started = [
        subprocess.Popen([tree.python, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree.source.parent)
        for tree in trees
    ]
    codes = [process.wait(seconds) for process in started]
    if any(codes):
        raise RuntimeError(f"building ended with {codes}")


def bench_in_turns(out: Path, trees: list[Tree], seconds: float) -> None:
    """All figures of `allotment bench`: medians of the turns, and of the ratios within a turn."""
    taken: list[dict[str, dict[str, float]]] = []
    for _ in range(TURNS):
        turn = {tree.name: json.loads(tree.run("-c", BENCH, seconds=seconds)) for tree in trees}
        taken.append(turn)
        (out / "bench.json").write_text(json.dumps(taken, indent=1) + "\n")
    first, *others = [tree.name for tree in trees]
    lines = [f"| | {first} | {' | '.join(others)} |{' ratio |' * len(others)}", f"|---|{'---|' * 2 * len(others)}---|"]
    for figure in taken[0][first]:
        if all(figure in turn[name] for turn in taken for name in turn):
            middle = [statistics.median(turn[name][figure] for turn in taken) for name in (first, *others)]
            ratios = [statistics.median(turn[first][figure] / turn[name][figure] for turn in taken) for name in others]
            lines.append(f"| {figure} | {' | '.join(f'{value:.3g}' for value in (*middle, *ratios))} |")
    (out / "bench.md").write_text("\n".join(lines) + "\n")


def threads(out: Path, tree: Tree, seconds: float) -> None:
    arguments = ["--seconds", "0.15", "--rounds", "3", "--out", str(out / f"threads-{tree.name}.json")]
    output = out / f"threads-{tree.name}.md"
    tree.run(str(HERE / "threads.py"), *arguments, seconds=seconds, output=output)


def measure(out: Path, kit: Path, seconds: float) -> bool:
    """Run the parts in order; return whether all of them were done."""
    this, before = Tree("this", ROOT / "src"), Tree("before", kit / "before" / "src")
    free = Tree("free-threaded", kit / "free-threaded", str(kit / "python" / "bin" / "python"))
    sources = [str(before.source)] if before.source.exists() else []
    both = [this, before] if sources else [this]
    script = str(HERE / "hot_path.py")
    parts: list[tuple[str, float, Callable[[float], object]]] = [
        ("build", 30, lambda left: build(both, left)),
        (
            "hot path",
            25,
            lambda left: this.run(script, "--rounds", "11", *sources, seconds=left, output=out / "hot_path.md"),
        ),
        ("threads, this tree", 25, lambda left: threads(out, this, left)),
    ]
    if Path(free.python).exists():
        parts.append(("threads, free-threaded", 25, lambda left: threads(out, free, left)))
    parts.append(("bench", 60, lambda left: bench_in_turns(out, both, left)))
    if sources:
        parts.append(("threads, before", 25, lambda left: threads(out, before, left)))
    begin = time.monotonic()
    rows = ["| part | s | outcome |", "|---|---|---|"]
    good = True
    for name, least, part in parts:
        started = time.monotonic()
        left = begin + seconds - started
        outcome = "done"
        if left < least:
            outcome = f"left out: it needs {least:.0f} s, and {max(left, 0):.0f} are left"
        else:
            print(f"[{started - begin:4.0f} s] {name} begins", flush=True)
            try:
                part(left)
            except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                outcome = f"{type(error).__name__}: {str(error)[:200]}"
        good = good and outcome == "done"
        rows.append(f"| {name} | {time.monotonic() - started:.0f} | {outcome} |")
        print(rows[-1], flush=True)
        (out / "summary.md").write_text("\n".join(rows) + "\n")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", action="store_true", help="make the kit")
    parser.add_argument("--before", default="fd7c9b6", metavar="REVISION")
    parser.add_argument("--python", type=Path, metavar="PREFIX", help="where a free-threaded Python is installed")
    parser.add_argument("--built", type=Path, metavar="TREE", help="a copy of this tree that it has built")
    parser.add_argument("--kit", type=Path, default=ROOT / "build" / "kit.tar.gz")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=230)
    options = parser.parse_args()
    if options.pack:
        pack(options.kit, options.before, options.python, options.built)
        return 0
    if options.out is None:
        parser.error("--out or --pack is needed")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.kit.exists():
            subprocess.run(["tar", "-xzf", options.kit, "-C", folder], check=True)
        return 0 if measure(out, Path(folder), options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
