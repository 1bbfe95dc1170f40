"""The class that programs call: regions, and pausing and resuming them by tag."""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allotment._allocators.caching.tags import pool_of_tag_named
from allotment._allocators.current import all_holders
from allotment.errors import RequestError
from allotment.torch._install import install, is_installed
from allotment.torch.memory_saver import _regions as regions
from allotment.torch.memory_saver._internals import Internals
from allotment.torch.memory_saver._regions import DEFAULT_TAG, Region

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator

_HOOK_MODES = ("preload", "torch")


class TorchMemorySaver:
    """Memory of PyTorch that is released and brought back at the same addresses, by tag.

    The memory of a region sleeps with its contents (`enable_cpu_backup`, `enable_disk_backup`) or without. All of it
    is process-wide: every instance sees the same regions. Methods raise what `Allocator.pause` and `Allocator.resume`
    raise. Safe to use from several threads; a region is that of the thread that entered it.
    """

    def __init__(self) -> None:
        self._impl: Internals | None = None
        self._retain: bool | None = None
        self._margin = 0
        self._limits: dict[Allocator, int | None] = {}  # of the allocators that a margin limits, without it
        self._folder = os.environ.get("TMS_DISK_BACKUP_DIR")

    # --- regions ---

    @contextmanager
    def region(
        self,
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Put what this thread allocates inside into a tag; the innermost of several regions counts.

        `cpu_backup_backend` ("pinned" or "mmap") is accepted and changes nothing: there is one kind of copy, whose
        pages the host has back after the resume.
        """
        keep = regions.keep_for(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        self._ensure_initialized()
        backend = cpu_backup_backend or regions.current().backend
        self._keep_margin()
        with regions.entered(Region(tag, keep, backend)):  # type: ignore[arg-type]
            yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """`torch.cuda.graph`, with the memory of the capture in a tag.

        Without a backup, buffers that the graph reads and does not write are lost in a pause.
        """
        with (
            self.region(tag, enable_cpu_backup, cpu_backup_backend=cpu_backup_backend),
            torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode),
        ):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Keep what this thread allocates inside out of the region that it is in.

        At the end, what is cached of this memory goes back to the device. Raises RequestError outside of a region.
        """
        self._ensure_initialized()
        if not regions.current().active:
            raise RequestError(
                "disable() is for code inside a region, and this thread is outside; TMS_INIT_ENABLE=1 puts all threads"
                " inside"
            )
        outside = Region(active=False)
        with regions.entered(outside):
            try:
                yield
            finally:
                for allocator in _allocators_with(outside.name):
                    allocator.empty_cache(pool_of_tag_named(outside.name))

    # --- pausing ---

    def pause(self, tag: str | None = None) -> None:
        """Release the memory of a tag, or of all. Does nothing for a tag without memory, or one that is paused.

        If one of several cannot be paused, the others may be paused, each as a whole; call it again.
        """
        self._ensure_initialized()
        for allocator, name, region in _regions_with_memory(tag):
            folder = self._folder if region.keep == "file" else None
            # Contents kept on the host are released at the resume, unless they are to be retained by then.
            allocator.pause(name, keep=region.keep, keep_host=region.keep == "host", folder=folder)
        self._keep_margin()

    def resume(self, tag: str | None = None) -> None:
        """Bring the memory of a tag, or of all, back at its addresses. Does nothing for a tag that is not paused.

        If the device has too little memory, `OutOfMemoryError` is raised; tags that fitted are awake, the others are
        asleep as they were, and can be resumed later.
        """
        self._ensure_initialized()
        self._lift_margin()  # memory that comes back had its memory before
        try:
            for allocator, name, region in _regions_with_memory(tag):
                if name in allocator.paused():
                    allocator.resume(name)
                    if region.keep == "host" and not self.retain_cpu_backup:
                        allocator.sleep.release_host_copy(name)
        finally:
            self._keep_margin()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """What the host has of the contents of a tensor, as a tensor there; None if it has nothing.

        It has them while the tensor sleeps, and with `retain_cpu_backup` from then on, as they were at the last pause.
        `zero_copy` gives a view of the copy itself, whose bytes are arbitrary after the next pause or resume, and which
        keeps the copy's pages. Raises RequestError for a tensor that is not on a GPU, or not contiguous.
        """
        self._ensure_initialized()
        if not x.is_cuda or not x.is_contiguous():
            raise RequestError(
                f"get_cpu_backup needs a contiguous tensor on a GPU; this one is on {x.device}, of shape"
                f" {tuple(x.shape)} and strides {x.stride()}"
            )
        if x.nbytes == 0:
            return torch.empty_like(x, device="cpu")
        for allocator in _allocators():
            view = allocator.sleep.contents_of(x.data_ptr(), x.nbytes)
            if view is not None:
                # Without a copy of the view's flag that it is read-only, of which PyTorch would warn.
                flat = (ctypes.c_uint8 * x.nbytes).from_address(np.frombuffer(view, np.uint8).ctypes.data)
                flat.view = view  # type: ignore[attr-defined]  # keeps the pages while the tensor exists
                found = torch.frombuffer(flat, dtype=torch.uint8).view(x.dtype).view(x.shape)
                return found if zero_copy else found.clone()
        return None

    # --- settings ---

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    @property
    def hook_mode(self) -> str:
        """Can only be set, to "preload" or "torch". Both mean the same here: PyTorch's memory is Allotment's."""
        raise AttributeError("hook_mode can only be set")

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in _HOOK_MODES:
            raise RequestError(f"hook_mode must be 'preload' or 'torch', not {mode!r}")

    @property
    def memory_margin_bytes(self) -> int:
        """Can only be set: how much memory of each GPU is left to others; 0 ends it.

        It is a limit of our allocators on all of PyTorch's memory, computed from what is free at the moment, and again
        at each region, pause and resume.
        """
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._ensure_initialized()
        self._lift_margin()
        self._margin = operator.index(value)
        self._keep_margin()

    def _keep_margin(self) -> None:
        if self._margin:
            for allocator in _cuda_allocators():
                own = self._limits.setdefault(allocator, allocator.limit)
                room = allocator.memory_info()[0] - self._margin
                limit = max(allocator.stats()["reserved_bytes.all.current"] + room, 1)
                allocator.limit = limit if own is None else min(own, limit)

    def _lift_margin(self) -> None:
        while self._limits:
            allocator, own = self._limits.popitem()
            if not allocator.closed:
                allocator.limit = own

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether the host copies of what sleeps next stay after the resume, so that later pauses are faster."""
        return regions.switch("TMS_RETAIN_CPU_BACKUP") if self._retain is None else self._retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retain = bool(value)

    def set_disk_backup_dir(self, path: str) -> None:
        """Choose the folder of `enable_disk_backup`, which is created if needed; else it is TMS_DISK_BACKUP_DIR."""
        os.makedirs(path, exist_ok=True)
        self._folder = os.fspath(path)

    def _ensure_initialized(self) -> None:
        """Serve PyTorch's memory, unless that is done already. Raises what `allotment.torch.install` raises."""
        if self._impl is None:
            if not is_installed():
                install()
            self._impl = Internals()


def _allocators_with(name: str) -> list[Allocator]:
    """Return the allocators of this process that have memory in a tag of Allotment."""
    return [allocator for allocator in _allocators() if name in allocator.sleep.tags()]


def _cuda_allocators() -> list[Allocator]:
    return [allocator for allocator in _allocators() if allocator.device.family == "cuda"]


def _allocators() -> list[Allocator]:
    return [holder for holder in all_holders() if hasattr(holder, "sleep") and not holder.closed]


def _regions_with_memory(tag: str | None) -> list[tuple[Allocator, str, Region]]:
    """Return the regions of a tag, or of all: the allocator, the tag of Allotment, the region."""
    found = []
    for allocator in _allocators():
        for name, figures in allocator.sleep.tags().items():
            region = regions.region_of(name)
            if region is not None and (not tag or region.tag == tag) and any(figures.values()):
                found.append((allocator, name, region))
    return found
