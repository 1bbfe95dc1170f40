"""What vLLM calls in each of its processes, as its plugin "allotment"."""

from __future__ import annotations

import os

BACKEND = "allotment"
VARIABLE = "ALLOTMENT_VLLM"


def register() -> None:
    """Register the sleep mode backend "allotment"; with ALLOTMENT_VLLM=1, serve this process's memory too.

    May be called again. Raises what `allotment.vllm.install` raises.
    """
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory  # type: ignore[import-not-found]

    if BACKEND not in SleepModeBackendFactory._registry:
        SleepModeBackendFactory.register_backend(BACKEND, "allotment.vllm", "AllotmentBackend")
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        from allotment import vllm

        vllm.install()
