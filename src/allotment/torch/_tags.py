"""Pausing PyTorch's memory: a module, tensors, or a tag by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

from allotment._allocators.caching.keeping import Keeping
from allotment._allocators.caching.tags import check_host_limit
from allotment._allocators.current import current_caching
from allotment.errors import PoolError, RequestError

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator

__all__ = ["pause", "resume"]


def pause(
    what: Any,
    *,
    keep: str = "host",
    keep_host: bool = False,
    folder: str | PathLike[str] | None = None,
    host_limit: int | str | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> int:
    """Release the GPU memory of a module, of tensors or of a tag, and keep every address; returns the bytes released.

    `what` is a `torch.nn.Module` (its parameters and buffers), a tensor, several of them, or the name of a tag. They
    must have been allocated inside `with allotment.tag(name):`, and `pause` pauses all of their tags, with everything
    else in them. The other arguments and what is raised are those of `Allocator.pause`, for each tag, but `host_limit`
    is for all of them together; RequestError for a tensor that is in no tag.
    """
    tags = _tags_of(what)
    check_host_limit(tags, Keeping(keep, keep_host, folder, host_limit))
    return sum(
        allocator.pause(tag, keep=keep, keep_host=keep_host, folder=folder, progress=progress)
        for allocator, tag in tags
    )


def resume(what: Any, *, progress: Callable[[int, int], None] | bool | None = None) -> None:
    """Bring paused memory back at the same addresses with its contents: see `Allocator.resume`."""
    for allocator, tag in _tags_of(what):
        allocator.resume(tag, progress=progress)


def _tags_of(what: Any) -> list[tuple[Allocator, str]]:
    if isinstance(what, str):
        tagged = [(allocator, what) for allocator in _allocators() if what in allocator.sleep.tags()]
        if not tagged:
            raise PoolError(f"nothing on any GPU was allocated in the tag {what!r}")
        return tagged
    tags: dict[tuple[int, str], tuple[Allocator, str]] = {}
    places: dict[int, list[tuple[int, int, str]]] = {}
    for tensor in _tensors_of(what):
        allocator = current_caching(f"cuda:{tensor.get_device()}")
        if tensor.get_device() not in places:
            places[tensor.get_device()] = _places_of_tags(allocator)
        address = tensor.untyped_storage().data_ptr()
        tag = next((name for start, size, name in places[tensor.get_device()] if 0 <= address - start < size), "")
        if not tag:
            raise RequestError(
                f"a tensor of shape {tuple(tensor.shape)} is in no tag, so it cannot be paused; create it inside"
                " `with allotment.tag(name):`"
            )
        tags[tensor.get_device(), tag] = allocator, tag
    return list(tags.values())


def _allocators() -> list[Allocator]:
    return [current_caching(f"cuda:{index}") for index in range(torch.cuda.device_count())]


def _tensors_of(what: Any) -> Iterator[torch.Tensor]:
    """Return the tensors that have memory on a GPU."""
    if isinstance(what, torch.nn.Module):
        what = [*what.parameters(), *what.buffers()]
    tensors: Iterable[Any] = [what] if isinstance(what, torch.Tensor) else what
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"a module, tensors or the name of a tag can be paused, not {type(tensor).__name__}")
        if tensor.is_cuda and tensor.untyped_storage().nbytes() > 0:
            yield tensor


def _places_of_tags(allocator: Allocator) -> list[tuple[int, int, str]]:
    """Address, size and tag of each segment that sleeps with a tag."""
    names = {pool: name for name in allocator.sleep.tags() for pool in allocator.sleep.pools_of(name)}
    return [
        (segment["address"], segment["total_size"], names[segment["segment_pool_id"]])
        for segment in allocator.history.segments()
        if segment["segment_pool_id"] in names
    ]
