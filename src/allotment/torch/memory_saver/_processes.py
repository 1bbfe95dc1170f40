"""In which processes `import torch_memory_saver` finds this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from allotment._allocators.caching.tags import tag as Tag
from allotment.torch._install import install as install_for_torch
from allotment.torch._install import installed_mode, is_installed
from allotment.torch.memory_saver import _regions as regions

_NAME = "torch_memory_saver"
FOLDER = str(Path(__file__).parent / "as_package")
_MODE = "ALLOTMENT_TORCH_MODE"


def install() -> None:
    """Make `import torch_memory_saver` find this package, here and in Python processes that are started from now on.

    Also serves PyTorch's memory from Allotment (`allotment.torch.install()`, unless that was called before), and puts
    all memory into the default tag if TMS_INIT_ENABLE is 1. May be called again. Without a PyTorch for CUDA it does
    only the first, and the first region raises. Raises what `allotment.torch.install` raises, and RequestError for a
    value of a `TMS_...` variable that means nothing.
    """
    ours = sys.modules[__package__]
    if sys.modules.get(_NAME) is ours:
        return
    process = regions.of_the_process()
    if not is_installed() and torch.version.cuda is not None:
        install_for_torch(os.environ.get(_MODE, "auto"))  # type: ignore[arg-type]
    if process.active:
        Tag(process.name)._enter_everywhere()
    sys.modules[_NAME] = ours
    os.environ.update(_environment())


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Have Python processes that are started inside find this package too; needed if `install` was not called here."""
    changes = _environment()
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _environment() -> dict[str, str]:
    """Return the variables that make `import torch_memory_saver` find this package, in the installed mode."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", FOLDER)]
    found = {"PYTHONPATH": os.pathsep.join([FOLDER, *places])}
    mode = installed_mode()
    return found | ({_MODE: mode} if mode is not None else {})
