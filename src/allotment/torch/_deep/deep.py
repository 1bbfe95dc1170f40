"""Puts the compiled torch allocator in place of PyTorch's own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from allotment import _logs as logs
from allotment.errors import RequestError
from allotment.torch._deep.building import (
    TORCH_ALLOCATOR,
    CannotBuild,
    Library,
    Program,
    TorchFacts,
    is_proven,
    kept_library,
    library,
    packaged_library,
    refuse_unknown,
    say_on_standard_error,
)
from allotment.torch._deep.self_check import expect_equal
from allotment.torch._process_state import process_state

if TYPE_CHECKING:
    from allotment._allocators.caching.tenants import Tenant

_loaded: Any = None  # the library; kept, because PyTorch calls into it until the process ends
_at_hand: Any = None  # the library in hooks mode, likewise


def torch_here() -> TorchFacts:
    """The PyTorch of this process."""
    return TorchFacts(
        version=str(getattr(torch, "__version__", "of an unknown version")),
        cuda=getattr(getattr(torch, "version", None), "cuda", None),
        folder=Path(getattr(torch, "__file__", None) or "torch").parent,
        new_strings=bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)),
        git_version=getattr(getattr(torch, "version", None), "git_version", None),
        hip=getattr(getattr(torch, "version", None), "hip", None),
    )


def load(*, insist: bool) -> Any:
    """Load the compiled torch allocator, without changing anything yet. Raises CannotBuild.

    Unless `insist`, a release of PyTorch that deep mode was not proven with must pass a check first.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    here = torch_here()
    refuse_unknown(here)
    try:
        from allotment.torch._deep import interface
    except ImportError as error:
        raise CannotBuild(f"deep mode needs Linux and a complete build of Allotment ({error})") from error
    table = ctypes.c_void_p(interface.address())
    built, opened = open_library(
        here, TORCH_ALLOCATOR, lambda opened: bool(opened.allotment_torch_allocator_fits(table))
    )
    opened.allotment_torch_allocator_install.restype = ctypes.c_char_p
    opened.allotment_torch_allocator_install.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    opened.allotment_torch_allocator_contexts.restype = ctypes.c_size_t
    if not insist and not is_proven(here):
        expect_equal(here, built, say_on_standard_error, lambda: torch.cuda.device_count() > 0)
    _loaded = opened
    return opened


def library_at_hand() -> Any | None:
    """The compiled torch allocator, for its functions that need no `put_in_place`; None if it was never compiled."""
    global _at_hand
    if _loaded is None and _at_hand is None:
        here = torch_here()
        with suppress(OSError):
            found = packaged_library(here) or kept_library(here)
            _at_hand = ctypes.CDLL(found.loadable) if found is not None else None
    return _loaded or _at_hand


def open_library(here: TorchFacts, program: Program, fits: Callable[[Any], bool]) -> tuple[Library, Any]:
    """Load the library that came with the package if it can be used here, else the compiled one. Raises CannotBuild."""
    packaged = packaged_library(here, program)
    if packaged is not None:
        try:
            opened = ctypes.CDLL(packaged.loadable)
            if fits(opened):
                return packaged, opened
        except (OSError, AttributeError) as error:
            logs.logger.info(f"the packaged library {packaged.path} cannot be loaded, another one is compiled: {error}")
        os.close(packaged.descriptor)
    compiled = library(here, program=program)
    try:
        opened = ctypes.CDLL(compiled.loadable)
        if fits(opened):
            return compiled, opened
    except (OSError, AttributeError) as error:
        raise CannotBuild(f"the compiled library {compiled.path} cannot be loaded: {error}; remove it") from error
    raise CannotBuild(f"the compiled library {compiled.path} is for another version of Allotment; remove it")


def put_in_place(tenant_on: Callable[[int], Tenant]) -> None:
    """Make PyTorch use it. Raises RequestError if it is too late. pre: load"""
    from allotment.torch._deep import bound_devices, interface

    bound_devices.bind_with(tenant_on, process_state)
    # Pools are numbered in order, so the next number is their count. Read only if pools may exist.
    pools_made = torch._C._graph_pool_handle()[1] if torch.cuda.is_initialized() else 0
    reason = _loaded.allotment_torch_allocator_install(interface.address(), pools_made)
    if reason is not None:
        raise RequestError(
            f"PyTorch's allocator can no longer be replaced: {reason.decode()}; call allotment.torch.install() right"
            " after importing torch, or start the program with python -m allotment.torch"
        )
