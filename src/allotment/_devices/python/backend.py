"""The class that devices written in Python derive from."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

from allotment._core.contract.operations import OPERATIONS
from allotment._devices.python.device import PythonDevice
from allotment._devices.python.methods import Methods

__all__ = ["Backend"]

_METHODS = [operation.python_name for operation in OPERATIONS if not operation.is_special]
_ALIKE = 0.8
"""A name this similar to a known one counts as misspelt: one letter too many, too few or swapped."""


class Backend(Methods, PythonDevice):
    """A device written in Python: subclass it, define what your device can do, and pass it to an `Allocator`.

    `allocate` and `free` are enough. Every other method is optional; the device can do what its class defines when an
    object is created. Methods that make sense only together must be defined all or none; TypeError says which one is
    missing, and a warning names a method that looks like a misspelt one of these. A subclass removes a method by
    setting it to None.

    How a method refuses: MemoryError means that there is no room now (the allocator releases cached memory and
    retries). StreamError or AddressError means that a handle is not, or no longer, valid on this device.
    UnsupportedError means that the device cannot do this. Any other exception means that the device failed. The
    allocator's user gets our error, chained to yours. A method that raises must have changed nothing.

    Methods are called from any thread, several at once, and while the allocator is locked: never call the allocator
    that the device serves. Addresses and handles are ints from 1 to 2**64 - 1; sizes are bytes. Stream 0 is the default
    stream. See docs/writing-a-backend.md.
    """

    name: str  # the device's name, not a method's

    def __init__(
        self, *, name: str | None = None, family: str | None = None, index: int = 0, host: bool = False
    ) -> None:
        """Set up the device.

        `name` is shown in messages, by default the name of the class; `family` is the kind of device, by default
        "python" (memory that CUDA can use says "cuda"); `index` is the device's number in reports and snapshots; `host`
        says that this process can read and write at the device's addresses.
        """
        super().__init__(name=name, family=family, index=index, host=host)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for part in cls.__mro__:
            if part is cls or not (issubclass(part, Backend) or part in Backend.__mro__):
                _warn_of_misspelt_methods(cls, part)


def _warn_of_misspelt_methods(cls: type[Backend], part: type) -> None:
    """Warn of misspelt methods that `part`, one of the base classes of `cls`, defines."""
    missing = [name for name in _METHODS if getattr(cls, name) is getattr(Methods, name)]
    for name, value in vars(part).items():
        if name.startswith("_") or not callable(value) or hasattr(Backend, name):
            continue
        for meant in difflib.get_close_matches(name, missing, n=1, cutoff=_ALIKE):
            warnings.warn(
                f"{part.__name__}.{name} is not a method of a device, and is never called: did you mean {meant}?",
                stacklevel=3,
            )
