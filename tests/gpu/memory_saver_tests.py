"""Runs the tests of torch_memory_saver natively and on `allotment.torch.memory_saver`, in both modes.

    python tests/gpu/memory_saver_tests.py --tests FOLDER --wheel FILE --out FOLDER

`--tests` is the folder `test` of that project at 0.0.10, `--wheel` its wheel. Its tests of packaging are omitted.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

from foreign_tests import compare

import allotment

SOURCE = Path(allotment.__file__).parents[1]
OURS = SOURCE / "allotment" / "torch" / "memory_saver" / "as_package"
FILES = ["test_examples.py", "test_utils.py", "test_configure_subprocess.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--ways", nargs="+", default=["native", "hooks", "deep"])
    parser.add_argument("--seconds", type=int, default=90, help="for one test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", default="", help="only the tests that pytest's option -k selects")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as native:
        if options.wheel is not None:
            zipfile.ZipFile(options.wheel).extractall(native)
        ours = f"{OURS}:{SOURCE}"
        ways = {
            "native": {"PYTHONPATH": native},
            "hooks": {"PYTHONPATH": ours, "ALLOTMENT_TORCH_MODE": "hooks"},
            "deep": {"PYTHONPATH": ours, "ALLOTMENT_TORCH_MODE": "deep"},
        }
        chosen = {name: ways[name] for name in options.ways}
        selected = ["-k", options.k] if options.k else []
        compare(chosen, [*FILES, *selected], at=options.tests, seconds=options.seconds, out=options.out)


if __name__ == "__main__":
    main()
