"""NumPy's large arrays from an allocator on host memory, so that pages are mapped once and not for each array.

    import allotment.numpy

    with allotment.numpy.caching() as allocator:            # this thread, or this task
        result = a * b + c
    allotment.numpy.install()                               # every thread
    allotment.numpy.install(limit="20GiB")                  # more raises MemoryError
    allotment.numpy.holders()                               # which line holds how much, if `record_history` is on
    allotment.numpy.uninstall()

NumPy itself serves arrays of less than `threshold` bytes, and all arrays while the allocator's default stream has work:
that work may still use memory that was freed on the stream. Memory is counted for the tenant "numpy". It is private to
the process: a forked child has its own copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.current import current_caching
from allotment._settings import parse_size
from allotment.errors import RequestError, UnsupportedError
from allotment.numpy import _idle, _refusals

try:
    from allotment.numpy import _handler
except ImportError as error:
    raise UnsupportedError(f"allotment.numpy needs host memory as a device, which only Linux has: {error}") from error

__all__ = ["Holder", "caching", "holders", "install", "is_installed", "uninstall"]

_NAME = "numpy"
_THRESHOLD = "1MiB"
_IDLE_SECONDS = 10.0

_serving: _handler.NumpyCache | None = None  # the process


class Holder(NamedTuple):
    """Arrays created by one line of a program."""

    where: str
    """File and line that created them; "" if no history was recorded then."""
    bytes: int
    blocks: int


@contextmanager
def caching(
    allocator: Allocator | Tenant | None = None,
    *,
    threshold: int | str = _THRESHOLD,
    limit: int | str | None = None,
    idle_seconds: float | None = _IDLE_SECONDS,
) -> Iterator[Allocator]:
    """Serve the large arrays that the calling thread, or asyncio task, creates inside the block; yields the allocator.

    `allocator` is an Allocator on host memory, or a Tenant of one; None is the shared one, or with a `limit` a new one.
    `threshold` is the minimum size of an array that is served. Cached memory that was not used within the last
    `idle_seconds` is released to the system; None keeps it until `empty_cache`.

    Arrays that outlive the block stay valid, and keep the allocator alive. Raises RequestError for an allocator that is
    not on host memory or whose memory a forked child would share, and SettingsError.
    """
    cache = _cache(allocator, threshold, limit)
    _idle.watch(cache, idle_seconds)
    _refusals.explain()
    before = cache.enter()
    try:
        yield cache.tenant.allocator
    except MemoryError as error:
        _refusals.add_note(error)
        raise
    finally:
        cache.leave(before)


def install(
    allocator: Allocator | Tenant | None = None,
    *,
    threshold: int | str = _THRESHOLD,
    limit: int | str | None = None,
    idle_seconds: float | None = _IDLE_SECONDS,
) -> Allocator:
    """Serve the large arrays of every thread from now on; arguments as for `caching`. Returns the allocator.

    A second call replaces the first; an installed allocator lives as long as the process, because its arrays may.
    Inside `caching`, that one stays in effect.
    """
    global _serving
    cache = _cache(allocator, threshold, limit)
    _idle.watch(cache, idle_seconds)
    _refusals.explain()
    cache.install()
    _serving = cache
    made: Allocator = cache.tenant.allocator
    return made


def uninstall() -> None:
    """Leave new arrays to NumPy; existing ones stay valid. Does nothing if not installed."""
    global _serving
    _handler.uninstall()
    _serving = None


def is_installed() -> bool:
    """Whether `install` is in effect."""
    return _handler.is_installed()


def holders(allocator: Allocator | Tenant | None = None) -> list[Holder]:
    """Return which lines of code hold NumPy's memory now, the largest first.

    `allocator` selects the arrays; None is the installed one, else the shared one. Lines are known for arrays created
    while `allocator.record_history()` was on.
    """
    if allocator is None:
        allocator = _serving.tenant if _serving is not None else current_caching("host")
    name = allocator.name if isinstance(allocator, Tenant) else _NAME
    owner = allocator.allocator if isinstance(allocator, Tenant) else allocator
    sizes: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for segment in owner.snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block.get("tenant") == name:
                where = _first_line(block.get("frames") or ())
                sizes[where] += block["size"]
                blocks[where] += 1
    return [Holder(where, size, blocks[where]) for where, size in sizes.most_common()]


def _first_line(frames: Any) -> str:
    """Return the innermost line outside NumPy itself."""
    for frame in frames:
        if "/numpy/" not in frame["filename"].replace("/allotment/numpy/", "/"):
            return f"{frame['filename']}:{frame['line']}"
    return f"{frames[0]['filename']}:{frames[0]['line']}" if frames else ""


def _cache(allocator: Allocator | Tenant | None, threshold: int | str, limit: int | str | None) -> _handler.NumpyCache:
    if allocator is None:
        allocator = current_caching("host") if limit is None else Allocator("host", limit=limit)
    elif limit is not None:
        raise RequestError("a limit is for an allocator that is created here; set that of yours: allocator.limit = ...")
    if isinstance(allocator, Allocator):
        allocator = allocator.tenant(_NAME)
    elif not isinstance(allocator, Tenant):
        raise TypeError(f"an allocator must be an Allocator or a Tenant of one, not {type(allocator).__name__}")
    _require_private_host_memory(allocator.allocator)
    return _handler.NumpyCache(allocator, parse_size(threshold))


def _require_private_host_memory(allocator: Allocator) -> None:
    if allocator.device.family != "host":
        raise RequestError(f"NumPy works with host memory; this allocator is on {allocator.device.name}")
    settings = allocator.settings
    shared = [
        text
        for text, chosen in (
            ("expandable_segments:True", settings.expandable_segments),
            ("placement:dense", settings.placement == "dense"),
            ("shareable:True", settings.shareable or getattr(allocator.device, "shareable", False)),
        )
        if chosen
    ]
    if shared:
        raise RequestError(
            f"{shared[0]} backs host memory with a file, which a forked child shares with its parent: NumPy's arrays "
            "must be private; pass an Allocator without it"
        )
