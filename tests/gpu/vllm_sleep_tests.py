"""Runs vLLM's own tests of its sleep mode natively and on Allotment, with a small model in place of the engine.

    python tests/gpu/vllm_sleep_tests.py --source FOLDER [--compiled FILE] --out FOLDER

`--source` is vLLM 0.32's source archive, unpacked, or the part of it that `--pack FOLDER` copies; `--compiled` is
`vllm/cumem_allocator.abi3.so` from its wheel, for the native run, which is omitted without it. The files of `REAL` are
vLLM's own, byte for byte. The folder `vllm_stand_in` has the other modules that they import.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from foreign_tests import compare

import allotment

HERE = Path(__file__).resolve().parent
SOURCE = Path(allotment.__file__).parents[1]
REAL = [
    "vllm/device_allocator/__init__.py",
    "vllm/device_allocator/alloc_conf.py",
    "vllm/device_allocator/cumem.py",
    "vllm/device_allocator/sleep_mode_backend.py",
    "vllm/compilation/cudagraph_pool.py",
    "vllm/distributed/device_communicators/cuda_wrapper.py",
    "vllm/utils/math_utils.py",
    "vllm/v1/worker/workspace.py",
    "tests/__init__.py",
    "tests/v1/__init__.py",
    "tests/v1/worker/__init__.py",
    "tests/v1/worker/test_sleep_mode_backend.py",
    "tests/basic_correctness/__init__.py",
    "tests/basic_correctness/memory/__init__.py",
    "tests/basic_correctness/memory/cumem/__init__.py",
    "tests/basic_correctness/memory/cumem/test_cumem.py",
]
TESTS = [name for name in REAL if "/test_" in name]


def copy_real(source: Path, folder: Path) -> None:
    for name in REAL:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).exists():
            shutil.copyfile(source / name, target)
        else:
            target.touch()


def stage(source: Path, compiled: Path | None, folder: Path) -> None:
    shutil.copytree(HERE / "vllm_stand_in", folder, dirs_exist_ok=True)
    copy_real(source, folder)
    if compiled is not None:
        shutil.copyfile(compiled, folder / "vllm" / "cumem_allocator.abi3.so")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--compiled", type=Path)
    parser.add_argument("--pack", type=Path, help="copy what is needed of the source to this folder, and end")
    parser.add_argument("--ways", nargs="+", default=["native", "cumem", "backend"])
    parser.add_argument("--seconds", type=int, default=90, help="for one test")
    parser.add_argument("--out", type=Path)
    parser.add_argument("-k", default="", help="only the tests that pytest's option -k selects")
    options = parser.parse_args()
    if options.pack is not None:
        copy_real(options.source, options.pack)
        return
    ours = {"ALLOTMENT_VLLM": "1"}
    ways = {
        "native": {},
        "cumem": ours,  # vLLM's backend, on our allocator
        "backend": ours | {"SLEEP_MODE_BACKEND": "allotment"},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage(options.source, options.compiled, folder)
        chosen = {
            way: ways[way] | {"PYTHONPATH": os.pathsep.join([name, str(SOURCE)])}
            for way in options.ways
            if way != "native" or options.compiled is not None
        }
        selected = ["-k", options.k] if options.k else []
        compare(
            chosen,
            [*TESTS, *selected],
            at=folder,
            seconds=options.seconds,
            out=options.out,
        )


if __name__ == "__main__":
    main()
