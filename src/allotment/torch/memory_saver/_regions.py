"""Regions as tags: a region's tag and the way its contents are kept are one tag of Allotment's.

Memory of one tag can be kept in several ways, because regions with one name may differ in their backup. Allotment
pauses a tag in one way, so each pair has its own tag.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from allotment._allocators.caching.tags import tag as Tag
from allotment.errors import RequestError

Keep = Literal["host", "nothing", "file"]
Backend = Literal["pinned", "mmap"]

DEFAULT_TAG = "default"
_PREFIX = "torch_memory_saver"
_OUTSIDE = f"{_PREFIX}/outside"
_BACKENDS = ("pinned", "mmap")


@dataclass(frozen=True, slots=True)
class Region:
    """How a thread's requests are kept while they sleep. `backend` only records the caller's choice."""

    tag: str = DEFAULT_TAG
    keep: Keep = "nothing"
    backend: Backend = "pinned"
    active: bool = True

    @property
    def name(self) -> str:
        """Name of the tag in Allotment that holds its memory."""
        return f"{_PREFIX}/{self.keep}/{self.tag}" if self.active else _OUTSIDE


def region_of(name: str) -> Region | None:
    """Return the region whose memory is in a tag of Allotment; None for a tag that is not a region's."""
    prefix, _, rest = name.partition("/")
    keep, slash, tag = rest.partition("/")
    return Region(tag, keep) if prefix == _PREFIX and slash else None  # type: ignore[arg-type]


def keep_for(cpu: bool, disk: bool, backend: str | None) -> Keep:
    """Raises RequestError for a meaningless combination."""
    if backend is not None and not cpu:
        raise RequestError(f"cpu_backup_backend={backend!r} requires enable_cpu_backup=True")
    if backend not in (None, *_BACKENDS):
        raise RequestError(f"cpu_backup_backend must be 'pinned' or 'mmap', not {backend!r}")
    if cpu and disk:
        raise RequestError("enable_cpu_backup and enable_disk_backup are mutually exclusive: choose one")
    return "host" if cpu else "file" if disk else "nothing"


# --- the variables ---


def switch(variable: str) -> bool:
    """Whether a variable is on. Raises RequestError for a value that is neither on nor off."""
    value = os.environ.get(variable, "0")
    if value.lower() in ("1", "true", "yes"):
        return True
    if value.lower() in ("", "0", "false", "no"):
        return False
    raise RequestError(f"{variable} must be 1 or 0, not {value!r}")


def of_the_process() -> Region:
    """Return the region of threads that are in none, according to the variables `TMS_INIT_...`."""
    backend = os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND", "pinned")
    if backend not in _BACKENDS:
        raise RequestError(f"TMS_INIT_CPU_BACKUP_BACKEND must be 'pinned' or 'mmap', not {backend!r}")
    keep = keep_for(switch("TMS_INIT_ENABLE_CPU_BACKUP"), switch("TMS_INIT_ENABLE_DISK_BACKUP"), None)
    return Region(DEFAULT_TAG, keep, backend, switch("TMS_INIT_ENABLE"))  # type: ignore[arg-type]


# --- where a thread is ---


class _Thread(threading.local):
    region: Region | None = None


_thread = _Thread()


def current() -> Region:
    return _thread.region or of_the_process()


@contextmanager
def entered(region: Region) -> Iterator[None]:
    """Put what this thread allocates into a region. An inactive region stands for no region."""
    before = _thread.region
    with Tag(region.name):
        _thread.region = region
        try:
            yield
        finally:
            _thread.region = before
