"""Allotment as a mechanism of vLLM's sleep mode, chosen by name."""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import SleepModeBackend  # type: ignore[import-not-found]

from allotment.errors import RequestError
from allotment.torch._install import is_installed
from allotment.vllm._allocator import CuMemAllocator


class AllotmentBackend(SleepModeBackend):  # type: ignore[misc]
    """AllotmentBackend()\n--\n
    `sleep_mode_backend="allotment"`. Its state follows what happened: after a failed sleep it is "RUNNING"."""

    def suspend(self, level: int = 1) -> None:
        """Level 1 keeps weights, runtime state and graphs on the host; level 2 everything except the weights."""
        _require_our_memory()
        kept = ("weights", "runtime", "cudagraph") if level == 1 else ("runtime", "cudagraph")
        CuMemAllocator.get_instance().sleep(offload_tags=kept)
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """See `CuMemAllocator.wake_up`. If it fails, the state is "SUSPENDED", and the wake can be repeated."""
        _require_our_memory()
        self._state = "RESUMING"
        try:
            CuMemAllocator.get_instance().wake_up(tags)
        except BaseException:
            self._state = "SUSPENDED"
            raise
        self._state = "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """Put tags to sleep without their contents."""
        _require_our_memory()
        CuMemAllocator.get_instance().discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        """Whether Allotment serves PyTorch's memory in this process."""
        return is_installed()

    @classmethod
    def preserves_communicators(cls) -> bool:
        """True: memory in no tag stays unchanged."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """True: the process continues, and code is not in a tag."""
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """True: addresses, graphs and communicators stay."""
        return True


def _require_our_memory() -> None:
    if not is_installed():
        raise RequestError(
            "PyTorch's memory is not Allotment's in this process, so it cannot sleep: start vLLM with ALLOTMENT_VLLM=1"
        )
