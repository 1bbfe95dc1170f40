"""Replaces PyTorch's allocator of pinned memory."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import replace
from typing import Any, Literal

from allotment import _settings as config
from allotment._allocators.pinned.allocator import (
    PinnedAllocator,
    meaningless_in_tight,
    refuse_settings_of_torch,
)
from allotment._allocators.pinned.points import points_address, points_form
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment.errors import RequestError
from allotment.torch._deep.building import TORCH_PINNED_ALLOCATOR, CannotBuild, refuse_unknown
from allotment.torch._deep.deep import open_library, torch_here

Kind = Literal["torch", "tight"]

KINDS = ("torch", "tight")
_Make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


class PinnedMemory:
    """The allocator of PyTorch's pinned memory, one for the process."""

    def __init__(self, kind: Kind, settings: config.Settings) -> None:
        """Raises SettingsError for settings without a meaning for this kind, unless PyTorch's variables name them."""
        self.kind = kind
        self.settings = settings if kind == "torch" else _settings_for_tight(settings)
        self.allocator: Any = None
        """The PinnedAllocator; None before the first request."""
        self._lock = fork_safe_lock()
        self._address = 0
        self._make = _Make(self._address_for)  # kept, because PyTorch may call it until the process ends
        self._library: Any = None

    def put_in_place(self) -> None:
        """Make PyTorch use it. Raises CannotBuild."""
        here = torch_here()
        refuse_unknown(here)
        version, size = points_form()
        form = ctypes.c_uint32(version), ctypes.c_size_t(size)
        _, found = open_library(
            here, TORCH_PINNED_ALLOCATOR, lambda opened: bool(opened.allotment_torch_pinned_fits(*form))
        )
        install = found.allotment_torch_pinned_install
        self._library = found
        install.restype = ctypes.c_char_p
        reason = install(self._make)
        if reason is not None:
            raise CannotBuild(f"PyTorch's pinned memory cannot be replaced: {reason.decode()}")

    def _address_for(self, device: int, text: Any, capacity: int) -> int:
        """Return the allocator's table, making the allocator on this device if needed; 0, with the reason as text."""
        try:
            return self._settled_address(device)
        except Exception as error:
            words = str(error).encode()[:capacity]
            ctypes.memmove(text, words, len(words))
            return 0

    def _settled_address(self, device: int) -> int:
        with self._lock:
            if self.allocator is None:
                made = PinnedAllocator(f"cuda:{device}", mode=self.kind, settings=self.settings)
                self._address = points_address(made)
                self.allocator = made
            return self._address


def _settings_for_tight(settings: config.Settings) -> config.Settings:
    """Return the settings without those of PyTorch's variables that have no meaning; a warning names them."""
    of_pytorch, _ = config.pytorch_environment(compat=settings.compat)
    unused = {
        name: config.DEFAULTS[name]
        for name in meaningless_in_tight(settings)
        if getattr(settings, name) == getattr(of_pytorch, name)
    }
    if unused:
        warnings.warn(
            f"PyTorch's settings name {', '.join(unused)}, which has no meaning in the mode 'tight' of pinned memory;"
            " it is not used",
            stacklevel=5,  # of who called install
        )
    chosen = replace(settings, **unused)
    refuse_settings_of_torch(chosen)
    return chosen


def expect_kind(kind: object) -> None:
    """Raise RequestError for anything but None and the two kinds."""
    if kind is not None and kind not in KINDS:
        raise RequestError(f"pinned must be 'torch' or 'tight', or None, not {kind!r}")
