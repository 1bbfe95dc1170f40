"""python -m allotment.torch [--mode M] [--settings S] [--no-patch] script.py ARGUMENT...  or  -m module ARGUMENT...

Runs an unchanged program with PyTorch's CUDA memory in Allotment's hands.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.machinery import SourceFileLoader
from runpy import _run_module_as_main  # type: ignore[attr-defined]
from types import ModuleType

from allotment.errors import AllotmentError
from allotment.torch._install import install


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allotment.torch", description=__doc__.splitlines()[2])
    parser.add_argument("--settings", help="a settings string; by default PyTorch's own variables are read")
    parser.add_argument(
        "--mode",
        choices=["auto", "hooks", "deep"],
        default="auto",
        help="deep: as PyTorch's own allocator, compiled once; hooks: as a plug-in; auto: deep where it is proven",
    )
    parser.add_argument(
        "--no-patch",
        action="store_true",
        help="of hooks: leave torch.cuda.memory_stats and its like as they are, so that they raise",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    # In one piece, because argparse would take a "--" behind the first piece for its own.
    parser.add_argument(
        "command", nargs=argparse.PARSER, metavar="program", help="a script, or with -m a module, and its arguments"
    )
    options = parser.parse_args()
    program = options.command[0]
    if not options.module and not os.path.exists(program):
        parser.exit(2, f"allotment.torch: can't open file {os.path.abspath(program)!r}: there is none\n")
    try:
        patch = False if options.no_patch else True if options.mode == "hooks" else None
        install(options.mode, settings=options.settings, patch=patch)
    except AllotmentError as error:
        parser.exit(2, f"allotment.torch: {error}\n")
    sys.argv = options.command
    if options.module:
        run_module(program)
    else:
        run_script(program)


# As Python itself runs a program: it is the `__main__` that pickles, threads and exit functions find, also when its
# last line is done. The public functions of runpy put their caller back then.


def run_module(name: str) -> None:
    _put_first_on_path(os.getcwd())
    _new_main()
    _run_module_as_main(name)


def run_script(path: str) -> None:
    path = os.path.abspath(path)
    module = _new_main()
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        _put_first_on_path(path)
        _run_module_as_main("__main__", False)
    else:
        _put_first_on_path(os.path.dirname(path))
        loader = SourceFileLoader("__main__", path)
        vars(module).update(__file__=path, __loader__=loader, __cached__=None)
        exec(loader.source_to_code(loader.get_data(path), path), vars(module))


def _new_main() -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(__builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = module
    return module


def _put_first_on_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


if __name__ == "__main__":
    main()
