"""What the package shows: public names, and nothing else."""

from pathlib import Path

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
}


def test_what_is_not_for_users_has_an_underscore_in_front():
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert {name for name in modules if not name.startswith("_")} == PUBLIC_MODULES
