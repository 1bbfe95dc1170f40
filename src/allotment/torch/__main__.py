"""python -m allotment.torch [--settings S] [--no-patch] script.py ARGUMENT...   or   ... -m module ARGUMENT...

Runs an unchanged program with PyTorch's CUDA memory in Allotment's hands.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from allotment.errors import AllotmentError
from allotment.torch.install import install


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allotment.torch", description=__doc__.splitlines()[2])
    parser.add_argument("--settings", help="a settings string; by default PyTorch's own variables are read")
    parser.add_argument(
        "--no-patch", action="store_true", help="leave torch.cuda.memory_stats and its like as they are: they raise"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    options = parser.parse_args()
    try:
        install(options.settings, patch=not options.no_patch)
    except AllotmentError as error:
        parser.exit(2, f"allotment.torch: {error}\n")
    sys.argv = [options.program, *options.arguments]
    if options.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(options.program))
        runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main()
