"""Prints what PyTorch's functions report about its memory after a fixed sequence, as JSON, without values that differ
by chance.

    torch_statistics.py native|patched SETTINGS

`native` is PyTorch's own allocator, configured by PYTORCH_CUDA_ALLOC_CONF; `patched` is ours, under PyTorch's names.
"""

from __future__ import annotations

import json
import random
import re
import sys
import warnings
from typing import Any

MODE, SETTINGS = sys.argv[1:]
if MODE == "patched":
    from allotment.torch._install import install

    install("hooks", settings=SETTINGS, patch=True)

import torch  # noqa: E402

MIB = 1 << 20
SIZES = (1, 700, 5_000, 300_000, MIB, 2 * MIB, 7 * MIB, 12 * MIB, 33 * MIB)
CHANCE_ALONE = {"time_us", "addr", "address", "stream", "frames", "device_free", "pool_id", "tenant"}


def figures() -> dict[str, Any]:
    cuda = torch.cuda
    return {
        "stats": dict(cuda.memory_stats()),
        "nested": cuda.memory_stats_as_nested_dict("cuda"),
        "by index": dict(cuda.memory_stats(0)),
        "by device": dict(cuda.memory_stats(torch.device("cuda:0"))),
        "allocated": [cuda.memory_allocated(), cuda.max_memory_allocated()],
        "reserved": [cuda.memory_reserved(), cuda.max_memory_reserved()],
        "former names": [cuda.memory_cached(), cuda.max_memory_cached()],
        "summary": cuda.memory_summary(),
        "short summary": cuda.memory_summary(abbreviated=True),
        "fraction": cuda.get_per_process_memory_fraction(),
    }


def without_chance(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_chance(each) for key, each in value.items() if key not in CHANCE_ALONE}
    return [without_chance(each) for each in value] if isinstance(value, list) else value


def complaint(function: Any, *args: Any, **named: Any) -> str:
    try:
        return f"no complaint, {function(*args, **named)!r}"
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        # PyTorch writes a device's number as a character, and where it asserts, the place in its source.
        said = re.sub(rf"(argument|device) {chr(99)}:", r"\1 99:", said)
        return re.sub(r": .*INTERNAL ASSERT FAILED.*(Allocator not)", r": \1", said)


def sequence(steps: int, seed: int, live: list[torch.Tensor], streams: list[torch.cuda.Stream]) -> None:
    choose = random.Random(seed)
    for _ in range(steps):
        if live and choose.random() < 0.45:
            live.pop(choose.randrange(len(live)))
        else:
            with torch.cuda.stream(choose.choice(streams)):
                live.append(torch.empty(choose.choice(SIZES), dtype=torch.uint8, device="cuda"))


def main() -> None:
    reported: dict[str, Any] = {"before": [dict(torch.cuda.memory_stats()), torch.cuda.memory_allocated()]}
    torch.cuda.init()
    reported["at first"] = figures()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    live: list[torch.Tensor] = []
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    sequence(200, 1, live, streams)
    reported["after a sequence"] = figures()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    reported["after resets"] = figures()
    sequence(100, 2, live, streams)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reported["after emptying"] = figures()
    snapshot = torch.cuda.memory._snapshot()
    reported["history"] = [without_chance(entry) for entry in snapshot["device_traces"][0]]
    reported["settings"] = {k: v for k, v in snapshot["allocator_settings"].items() if k != "PYTORCH_CUDA_ALLOC_CONF"}
    reported["segments"] = sorted(
        json.dumps(without_chance(segment), sort_keys=True) for segment in torch.cuda.memory_snapshot()
    )
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.set_per_process_memory_fraction(0.5)
    reported["after a limit"] = figures()
    reported["complaints"] = [
        complaint(torch.cuda.memory_stats, 99),
        complaint(torch.cuda.memory_stats, "cpu"),
        complaint(torch.cuda.memory_stats, 1.5),
        complaint(torch.cuda.reset_peak_memory_stats, 99),
        complaint(torch.cuda.reset_accumulated_memory_stats, "cuda:99"),
        complaint(torch.cuda.set_per_process_memory_fraction, 1),
        complaint(torch.cuda.set_per_process_memory_fraction, 1.5),
        complaint(torch.cuda.set_per_process_memory_fraction, 0.5, 99),
        complaint(torch.cuda.get_per_process_memory_fraction, 99),
        complaint(torch.cuda.memory._record_memory_history, "some"),
        complaint(torch.cuda.memory._record_memory_history, context="some"),
        complaint(torch.cuda.memory._record_memory_history, stacks="some"),
        complaint(torch._C._accelerator_setAllocatorSettings, "no_such_key:1"),
        complaint(torch._C._accelerator_setAllocatorSettings, "max_split_size_mb:1"),
    ]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        reported["pool"] = [pool.use_count(), len(pool.snapshot()), inside.numel()]
    reported["after a pool"] = figures()
    print(json.dumps(reported))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
