"""Runs other projects' tests natively and with our memory under their framework: what passes natively must pass with
it.

    python tests/stress/foreign_suites.py numpy [--threshold 1] [PACKAGE...]
    python tests/stress/foreign_suites.py cupy --set CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=1 FILE...
    python tests/stress/foreign_suites.py numba [PACKAGE...]
    python tests/stress/foreign_suites.py cupy --preload FILE...

With --preload the framework keeps its own memory, under `allotment.preload`, which counts it. NumPy and numba-cuda
bring their tests along, CuPy's are in its repository. Each run is a separate process. Exits with 1 if a test that
passes natively does not pass with our memory. For NumPy, a threshold of one byte sends every array to the allocator.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import allotment.preload
from allotment._process.library import preloaded

USUAL = {
    "numpy": ["numpy._core", "numpy.lib", "numpy.linalg", "numpy.fft"],
    "cupy": [],
    "numba": ["numba.cuda.tests.cudadrv", "numba.cuda.tests.cudapy.test_ipc"],
}
OPTIONS = ["-q", "-rN", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore", "-c", "/dev/null"]


class Outcomes:
    """A pytest plug-in that records the outcome of each test."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.outcome

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.by_test[report.nodeid] = "not collected"


class UnittestOutcomes(unittest.TextTestResult):
    """The same for unittest: numba-cuda's tests are in a package that pytest cannot import by its name."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.by_test: dict[str, str] = {}

    def startTest(self, test) -> None:
        super().startTest(test)
        self.by_test[test.id()] = "passed"  # unless a later report says otherwise

    def addSkip(self, test, reason) -> None:
        super().addSkip(test, reason)
        self.by_test[test.id()] = "skipped"

    def addFailure(self, test, error) -> None:
        super().addFailure(test, error)
        self.by_test[test.id()] = "failed"

    def addError(self, test, error) -> None:
        super().addError(test, error)
        self.by_test[test.id()] = "failed"

    def addSubTest(self, test, subtest, error) -> None:
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.by_test[test.id()] = "failed"


def outcomes_of(tests: list[str], adapter: str) -> dict[str, str]:
    if adapter == "numba":
        suite = unittest.defaultTestLoader.loadTestsFromNames(tests)
        return unittest.TextTestRunner(resultclass=UnittestOutcomes, verbosity=0).run(suite).by_test
    import pytest

    outcomes = Outcomes()
    named = [] if any(Path(name).exists() for name in tests) else ["--pyargs"]
    pytest.main([*OPTIONS, *named, *tests], plugins=[outcomes])
    return outcomes.by_test


def make_way_for_numba() -> None:
    """Modules that numba-cuda 0.30 imports and that its tests of memory do not use."""
    import numpy

    numpy.row_stack = getattr(numpy, "row_stack", numpy.vstack)
    if importlib.util.find_spec("filecheck") is None:
        for part in ("", ".matcher", ".options", ".parser", ".finput"):
            sys.modules[f"filecheck{part}"] = unittest.mock.MagicMock()


def installed(adapter: str, threshold: str):
    """Return the allocator under the framework, if a single one serves all devices."""
    if adapter == "numpy":
        import allotment.numpy

        return allotment.numpy.install(threshold=threshold)
    import allotment

    if adapter == "cupy":
        import allotment.cupy

        allotment.cupy.install()
    return allotment.current("cuda:0")


def run_here(chosen: argparse.Namespace) -> None:
    if chosen.adapter == "numba":
        make_way_for_numba()
    allocator = None if chosen.native else installed(chosen.adapter, chosen.threshold)
    by_test = outcomes_of(chosen.tests, chosen.adapter)
    library = preloaded()
    served = sum(way["calls"] for way in library.ways().values()) if library is not None else 0
    if allocator is not None:
        allocator.inspection.check_invariants()
        served = allocator.stats()["allocation.all.allocated"]
    chosen.result.write_text(json.dumps({"outcomes": by_test, "served": served}))


def run(chosen: argparse.Namespace, native: bool, preload: bool = False) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, __file__, chosen.adapter, *chosen.tests, "--result", str(result)]
        command += ["--threshold", chosen.threshold, *(["--native"] if native else [])]
        environment = os.environ | dict(pair.split("=", 1) for pair in chosen.set)
        if preload:
            environment |= allotment.preload.environment()
        if chosen.adapter == "numba" and not native:  # so that Numba skips the tests of its own manager
            environment["NUMBA_CUDA_MEMORY_MANAGER"] = "allotment.numba"
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        return json.loads(result.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", choices=USUAL)
    parser.add_argument("tests", nargs="*", help="packages or files; some are usual")
    parser.add_argument("--threshold", default="1MiB", help="least size of a NumPy array that is served")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the environment")
    parser.add_argument("--preload", action="store_true", help="count the framework's own memory instead of serving it")
    parser.add_argument("--native", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_intermixed_args()
    chosen.tests = chosen.tests or USUAL[chosen.adapter]
    if chosen.result is not None:
        run_here(chosen)
        return 0
    plain, ours = run(chosen, native=True), run(chosen, native=chosen.preload, preload=chosen.preload)
    worse = 0
    for name in sorted(plain["outcomes"].keys() | ours["outcomes"].keys()):
        before, after = plain["outcomes"].get(name), ours["outcomes"].get(name)
        if before != after:
            print(f"{name}: {before} natively, {after} here")
            worse += before == "passed" and after != "skipped"
    passed = [sum(outcome == "passed" for outcome in one["outcomes"].values()) for one in (plain, ours)]
    print(f"{passed[0]} of {len(plain['outcomes'])} passed natively, {passed[1]} of {len(ours['outcomes'])} here")
    what = "calls of the driver counted" if chosen.preload else "blocks served"
    print(f"{ours['served']} {what}; {worse} that passed natively do not pass here")
    return 1 if worse or not ours["served"] else 0


if __name__ == "__main__":
    sys.exit(main())
