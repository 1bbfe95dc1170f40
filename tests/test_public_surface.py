"""The package shows public names, and nothing else."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import allotment

SOURCE = Path(allotment.__file__).parent
PUBLIC_MODULES = {
    "cpu",
    "cuda_core",
    "cupy",
    "devices",
    "entry",
    "errors",
    "jax",
    "lab",
    "metadata",
    "metrics",
    "multiprocessing",
    "numba",
    "numpy",
    "preload",
    "relief",
    "testing",
    "torch",
    "vllm",
}


def test_what_is_not_for_users_has_an_underscore_in_front():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {name for name in modules if not name.startswith("_")} == PUBLIC_MODULES


def test_type_checkers_find_each_name_where_it_is_loaded_from():
    tree = ast.parse(Path(allotment.__file__).read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = {name.name: node.module for node in checked.body for name in node.names}
    assert imports == {name: f"allotment.{module}" for name, module in allotment._MODULES.items()}
    assert set(allotment.__all__) == {*imports, "__version__"}
    for name, module in imports.items():
        assert getattr(import_module(module), name) is getattr(allotment, name)


def test_a_name_that_the_package_does_not_have_is_no_attribute_of_it():
    with pytest.raises(AttributeError, match="module 'allotment' has no attribute 'alocator'"):
        allotment.alocator  # noqa: B018
    with pytest.raises(ImportError, match="alocator"):
        from allotment import alocator  # noqa: F401


def test_importing_the_package_loads_nothing_that_is_not_used_yet():
    program = """
import sys
there = set(sys.modules)
import allotment
loaded = set(sys.modules) - there
assert {name for name in loaded if name.count(".") > 1 and name.startswith("allotment.")} == {
    "allotment._core.tools", "allotment._core.tools.fork_safe_lock", "allotment._core.tools.forks",
    "allotment._libraries.cython_utility"}, loaded
assert not {"numpy", "dataclasses", "logging", "re"} & loaded, loaded
allocator = allotment.Allocator("host")
allocator.free(allocator.malloc(100))
unused = {"numpy", "socket", "allotment._monitor", "allotment._sharing.owner", "allotment._process"}
assert not unused & set(sys.modules), unused & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path = {sys.path!r}\n{program}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
