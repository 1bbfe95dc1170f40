"""Runs a program as Python itself runs one.

Pickles, threads and exit functions find the program as `__main__`, even after its last line. The public functions of
runpy restore their caller at that point.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from runpy import _run_module_as_main  # type: ignore[attr-defined]
from types import ModuleType


def run_module(name: str) -> None:
    """Run a module, as `python -m` does. The caller sets `sys.argv`."""
    _put_first_on_path(os.getcwd())
    _new_main()
    _run_module_as_main(name)


def run_script(path: str) -> None:
    """Run a file, a folder or an archive, as `python` does."""
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
