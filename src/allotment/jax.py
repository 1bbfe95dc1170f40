"""Serves JAX's arrays from this process's allocator.

    python -m allotment.preload --depth serve script.py

    import allotment.jax
    allotment.jax.install()                             # before JAX's first use of a device; or the option --jax
    import jax

JAX has no interface for foreign allocators. One of its own allocators, `cuda_async`, requests each array from the
driver's stream-ordered pool, and the library that `allotment.preload` loads before all others answers instead of the
driver. The memory counts as the tenant "jax".
"""

from __future__ import annotations

import os
import sys

from allotment import preload
from allotment.errors import RequestError

__all__ = ["install", "is_installed"]

COMMAND = "python -m allotment.preload --depth serve script.py"
_WANTED = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def install() -> None:
    """Make JAX request each array from the driver's pool, without preallocating, so that Allotment serves it.

    Sets the environment variables that JAX reads when it first uses a device; the children of this process get them
    too. May be called again. Raises RequestError, with the command to use, if this process was not started at depth
    "serve", or if JAX has used a device.
    """
    if preload.depth() != "serve":
        raise RequestError(f"JAX's memory can be served only in a process that was started with: {COMMAND}")
    if is_installed():
        return
    if _has_devices():
        raise RequestError(
            "JAX has used a device already, and cannot change its allocator; call allotment.jax.install() before,"
            f" or let the command do it: {COMMAND.replace('script', '--jax script')}"
        )
    os.environ.update(_WANTED)


def is_installed() -> bool:
    """Whether Allotment serves JAX's memory."""
    return preload.depth() == "serve" and all(os.environ.get(name) == value for name, value in _WANTED.items())


def _has_devices() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())
