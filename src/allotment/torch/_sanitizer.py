"""Finds races between streams in a PyTorch program, from what its operations touch and what orders its streams.

The callbacks of `torch.cuda._gpu_trace`, which PyTorch's own sanitizer uses, report events and waits; PyTorch's
dispatcher reports operations; our allocator reports memory. Work that Python does not see (kernels of extensions that
call no operator, work inside graphs) is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.cuda._gpu_trace as gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from allotment._allocators.caching.sanitizer.watch import Sanitizer
from allotment._allocators.current import current_caching

__all__ = ["sanitize"]

_watching: list[_Watch] = []
_registered = False


class _Watch:
    """The sanitizers of all devices, for one `with`."""

    def __init__(self) -> None:
        self.sanitizers: dict[int, Sanitizer] = {}
        self._trackers: list[tuple[Any, Any]] = []
        for index in range(torch.cuda.device_count()):
            allocator = current_caching(f"cuda:{index}")
            sanitizer = Sanitizer(allocator, writes_memory=False)
            tracker = _tracker_of(sanitizer)
            allocator.history.attach_trace_tracker(tracker)
            for segment in allocator.history.segments():
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        sanitizer.adopted(block["address"], block["requested_size"], segment["stream"])
            self.sanitizers[index] = sanitizer
            self._trackers.append((allocator, tracker))

    def close(self) -> None:
        for allocator, tracker in self._trackers:
            allocator.history.detach_trace_tracker(tracker)
        for sanitizer in self.sanitizers.values():
            sanitizer.close()


def _tracker_of(sanitizer: Sanitizer) -> Any:
    def tracker(action: str, address: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        if action == "alloc":
            sanitizer.allocated(address, size, stream)
        elif action == "free_requested":
            sanitizer.ended(address)

    return tracker


class _Operations(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Reports the arguments and results of each operator."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        schema = function._schema
        if function is torch.ops.aten.record_stream.default:
            tensor, stream = arguments
            self._of(tensor).recorded(tensor.untyped_storage().data_ptr(), _handle_of(stream))
            return function(*arguments, **options)
        for position, argument in enumerate(schema.arguments):
            value = options.get(argument.name)
            if value is None and position < len(arguments):
                value = arguments[position]
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if argument.alias_info is None or writes:  # otherwise the result is a view: no access
                self._touch(value, writes=writes)
        result = function(*arguments, **options)
        if all(returned.alias_info is None for returned in schema.returns):
            self._touch(result, writes=True)
        return result

    def _of(self, tensor: torch.Tensor) -> Sanitizer:
        return self._watch.sanitizers[tensor.get_device()]

    def _touch(self, value: Any, *, writes: bool) -> None:
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor.numel():
                stream = torch.cuda.current_stream(tensor.device).cuda_stream
                self._of(tensor).touched(tensor.untyped_storage().data_ptr(), stream, writes=writes)


def _handle_of(stream: Any) -> int:
    return int(
        getattr(stream, "cuda_stream", 0)
        or torch.cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        ).cuda_stream
    )


def _register() -> None:
    """Register the callbacks once: PyTorch cannot remove them."""
    global _registered
    if _registered:
        return
    _registered = True
    torch._C._activate_gpu_trace()

    def each(tell: Any) -> Any:
        def callback(*arguments: int) -> None:
            for watch in _watching:
                for sanitizer in watch.sanitizers.values():
                    tell(sanitizer, *arguments)

        return callback

    gpu_trace.register_callback_for_event_record(each(lambda s, event, stream: s.foreign_record(stream, event)))
    gpu_trace.register_callback_for_event_wait(each(lambda s, event, stream: s.foreign_wait(stream, event)))
    gpu_trace.register_callback_for_event_synchronization(each(lambda s, event: s.foreign_event_done(event)))
    gpu_trace.register_callback_for_stream_synchronization(each(lambda s, stream: s.foreign_stream_done(stream)))
    gpu_trace.register_callback_for_device_synchronization(each(lambda s: s.synchronized_device()))


@contextmanager
def sanitize() -> Iterator[dict[int, Sanitizer]]:
    """Find races between streams inside the block; yields the sanitizer of each GPU by index, with its `reports`.

    Also warns of each finding with a SanitizerWarning. Needs `install()`. Inside the block, operations cost several
    times as much. Raises UnsupportedError if another allocator than ours serves PyTorch.
    """
    _register()
    watch = _Watch()
    _watching.append(watch)
    try:
        with _Operations(watch):
            yield watch.sanitizers
    finally:
        _watching.remove(watch)
        watch.close()
