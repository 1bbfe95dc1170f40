"""NumPy's own tests with `allotment.numpy` installed, and without: what passes there passes here.

    python tests/stress/numpy_suite.py [--threshold 1] [PACKAGE...]

Needs the tests that come with NumPy, pytest and hypothesis. Each run is a process of its own. Exit code 1 if an outcome
differs. A threshold of one byte sends every array to the allocator, not the large ones alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ["numpy._core", "numpy.lib", "numpy.linalg", "numpy.fft"]


class Outcomes:
    """What became of each test: a pytest plug-in."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.outcome


def run_here(packages: list[str], threshold: str | None, result: Path) -> None:
    import pytest

    allocator = None
    if threshold is not None:
        import allotment.numpy

        allocator = allotment.numpy.install(threshold=threshold)
    outcomes = Outcomes()
    options = ["-q", "-rN", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore", "-c", "/dev/null"]
    pytest.main([*options, "--pyargs", *packages], plugins=[outcomes])
    served = 0
    if allocator is not None:
        allocator.check_invariants()
        served = allocator.stats()["allocation.all.allocated"]
    result.write_text(json.dumps({"outcomes": outcomes.by_test, "served": served}))


def run(packages: list[str], threshold: str | None) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, *packages, "--result", str(result)]
        if threshold is not None:
            command += ["--threshold", threshold]
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=folder)
        return json.loads(result.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--threshold", default=None, help="least size of an array that is served; 1MiB if not given")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.result is not None:
        run_here(chosen.packages, chosen.threshold, chosen.result)
        return 0
    plain = run(chosen.packages, None)
    ours = run(chosen.packages, chosen.threshold or "1MiB")
    differ = sorted(
        name
        for name in plain["outcomes"].keys() | ours["outcomes"].keys()
        if plain["outcomes"].get(name) != ours["outcomes"].get(name)
    )
    for name in differ:
        print(f"{name}: {plain['outcomes'].get(name)} without, {ours['outcomes'].get(name)} with the handler")
    passed = [sum(outcome == "passed" for outcome in one["outcomes"].values()) for one in (plain, ours)]
    print(f"{passed[0]} passed without, {passed[1]} with the handler, which served {ours['served']} arrays")
    print(f"{len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
