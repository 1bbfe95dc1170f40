"""Compiled modules of the tests' own: a `.pyx` in tests/extensions, built against the package's `.pxd` files.

What is `cdef` cannot be called from Python. A test of it has a small module there that calls it; the fixture
`extension` (tests/conftest.py) builds that module once a session, in a temporary folder:

    def test_something(extension):
        bits = extension("bits")            # tests/extensions/bits.pyx
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import allotment

SOURCES = Path(__file__).parents[1] / "extensions"
PACKAGES = Path(allotment.__file__).parents[1]  # where `from allotment... cimport` looks
DIRECTIVES = {  # as in setup.py
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": True,  # otherwise its import switches on the interpreter lock, for all later tests
}
# Not optimized: these modules are compiled in every session, and run for a moment.
FLAGS = [] if sys.platform == "win32" else ["-O0", "-g0", "-Wno-unused-function", "-Wno-sign-compare"]


def build(name: str, folder: Path) -> ModuleType:
    """Compile tests/extensions/`name`.pyx in `folder` and import it. Skips the test where that cannot be done."""
    pytest.importorskip("Cython", reason="Cython is not installed, which builds the tests' own extensions")
    pytest.importorskip("setuptools", reason="setuptools is not installed, which builds the tests' own extensions")
    if sys.platform != "win32" and not shutil.which("cc"):
        pytest.skip("no C compiler on this machine")
    path = folder / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    if not path.exists():
        compile_to(folder, name)
    return loaded(name, path)


def compile_to(folder: Path, name: str) -> None:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = folder / f"{name}.pyx"  # a copy, or the folders above it would become part of the module's name
    shutil.copy(SOURCES / f"{name}.pyx", source)
    modules = cythonize(
        [Extension(name, [str(source)], extra_compile_args=FLAGS)],
        include_path=[str(PACKAGES)],
        compiler_directives=DIRECTIVES,
        quiet=True,
    )
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib = str(folder)
    command.build_temp = str(folder / "objects")
    command.ensure_finalized()
    command.run()


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
