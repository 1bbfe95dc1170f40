"""JAX's arrays on the memory of this process's allocator.

    python -m allotment.preload --depth serve script.py

    import allotment.jax
    allotment.jax.install()                             # before JAX's first use of a device; or the option --jax
    import jax

JAX has no interface for memory of others. Its platform allocator asks the driver for each array, and the library that
`allotment.preload` loads before all others answers in the driver's place. Memory is counted as the tenant "jax".
"""

from __future__ import annotations

import os
import sys

from allotment import preload
from allotment.errors import RequestError

__all__ = ["install", "is_installed"]

COMMAND = "python -m allotment.preload --depth serve script.py"
_WANTED = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def install() -> None:
    """Have JAX ask for memory in the way that is served: no memory taken ahead, one request for each array.

    Sets the environment variables that JAX reads when it first uses a device; the children of this process get them
    too. May be called again. Raises RequestError, with the command to use, if this process was not started at depth
    "serve", or if JAX has used a device.
    """
    if preload.depth() != "serve":
        raise RequestError(f"JAX's memory can be served only in a process that was started so: {COMMAND}")
    if is_installed():
        return
    if _has_devices():
        raise RequestError(
            "JAX has used a device already, and keeps its way to ask for memory; call allotment.jax.install() before,"
            f" or let the command do it: {COMMAND.replace('script', '--jax script')}"
        )
    os.environ.update(_WANTED)


def is_installed() -> bool:
    """Whether JAX asks, or will ask, for memory in the way that is served."""
    return preload.depth() == "serve" and all(os.environ.get(name) == value for name, value in _WANTED.items())


def _has_devices() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())
