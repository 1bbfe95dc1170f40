"""Modules of an adapter without the framework."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import allotment


def import_bare(name):
    """Return a module such as allotment.torch._hooks without importing its package, which would need the framework."""
    package, _, _ = name.rpartition(".")
    bare = ModuleType(package)
    bare.__path__ = [str(Path(allotment.__file__).parent.joinpath(*package.split(".")[1:]))]
    there_before = sys.modules.get(package)
    sys.modules[package] = bare
    try:
        return importlib.import_module(name)
    finally:
        if there_before is None:
            del sys.modules[package]
        else:
            sys.modules[package] = there_before
