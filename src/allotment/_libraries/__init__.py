"""Finds the compiled modules: one shared library for each layer, which contains all modules of that layer.

With one file for each of the 150 modules, a process would make a hundred `dlopen` calls, which would take most of its
import time. Python itself looks for one file per module, so `install` adds a finder that Python asks last. So a build
with one file for each module, as sanitizers and coverage use, works without it.

The build uses `LIBRARIES` too. Two modules of one library must differ in the last part of their names, because Python
derives the name of a module's init function from it.
"""

from __future__ import annotations

import _thread
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType

LIBRARIES = {
    "allotment._core": "core",
    "allotment._devices": "devices",
    "allotment._devices.cuda": "cuda",
    "allotment._devices.host": "host",
    "allotment._devices.shared": "shared",
    "allotment._devices.simulated": "simulated",
    "allotment._sharing": "sharing",
    "allotment._allocators": "allocators",
    "allotment._allocators.host_cache": "host_cache",
    "allotment._allocators.pinned": "pinned",
    "allotment._allocators.pluggable": "pluggable",
    "allotment._allocators.stream_ordered": "stream_ordered",
    "allotment._formats": "formats",
    "allotment.cupy": "cupy",
    "allotment.numpy": "numpy",
    "allotment.torch": "torch_hooks",
    "allotment.torch._deep": "torch_deep",
    "allotment.lab": "lab",
}
"""The library of the compiled modules of a package and of its subpackages; the longest matching name counts."""


def library_of(module: str) -> str | None:
    """Return the library that contains a compiled module of this name; None if no library does."""
    package = module.rpartition(".")[0]
    while package:
        if package in LIBRARIES:
            return LIBRARIES[package]
        package = package.rpartition(".")[0]
    return None


class _Loader(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            return super().create_module(spec)
        except ImportError as error:
            if "PyInit_" in str(error):  # the library exists, but does not contain the module
                raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name) from None
            raise


class _Finder:  # not a MetaPathFinder: importing that class takes longer than everything here
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        library = library_of(name)
        if library is None:
            return None
        folder = os.path.dirname(__file__)
        for suffix in EXTENSION_SUFFIXES:
            file = os.path.join(folder, library + suffix)
            if os.path.exists(file):
                return ModuleSpec(name, _Loader(name, file), origin=file)
        others = [file for file in os.listdir(folder) if file.startswith(f"{library}.")]
        if others:
            raise ImportError(
                f"this copy of allotment was built for another Python: it has {others[0]}, and this one needs"
                f" {library}{EXTENSION_SUFFIXES[0]}; install it for this one: {sys.executable} -m pip install allotment"
            )
        return None


def install() -> None:
    """Make Python find the compiled modules. May be called again. Raises ImportError in a subinterpreter."""
    if not getattr(_thread, "_is_main_interpreter", lambda: True)():  # Python 3.11 cannot tell; there, Cython does
        raise ImportError(
            "allotment does not support subinterpreters: import it in the main interpreter, and use threads or"
            " processes"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # type: ignore[arg-type]
