# Made from points.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment._settings.record import Settings
from allotment.torch._process_state import ProcessState

def skippable(settings: Settings, names: set[str]) -> set[str]:
    """What can be left out of a history by the rules of a version: the others are passed over."""

def frames_of(context: int) -> list[dict[str, Any]]:
    """The frames of one of PyTorch's contexts, innermost first."""

def serve_with(function: Callable[[int], Tenant], state: ProcessState) -> None:
    """Who serves a device: asked once a device, when memory of it is first wanted. `state` is what all are told."""

def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""

def used_devices() -> list[int]:
    """The devices that PyTorch has asked for memory."""

def address() -> int:
    """The table of points, for the stand-in."""
