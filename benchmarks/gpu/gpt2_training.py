"""GPT-2 trained under PyTorch's own allocator and under ours: compares losses, peaks and speed.

    python benchmarks/gpu/gpt2_training.py [--rounds N] [--settings NAME]... [--out FILE]

A GPT-2 of six layers with random weights (transformers, no network) is trained for 30 steps; the sequence length
changes by step, which makes the allocator work. Each run is a separate process, and runs of the allocators take turns,
in reverse order every second round, with plain and with expandable segments. Exits with 1 if a loss differs in any bit
in any step, or the peak of reserved memory differs from the native allocator's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

STEPS = 30
WARM = 5
"""Steps that are not timed: they load kernels."""
BATCH = 8
LONGEST = 1024
SETTINGS = {"default": "", "expandable": "expandable_segments:True"}
NATIVE, MODES = "native", ("hooks", "deep")
WORKER = "--worker"


# One run.


def lengths() -> list[int]:
    choose = random.Random(5)
    return [choose.randrange(64, LONGEST + 1, 8) for _ in range(STEPS)]


def train(memory: Any) -> dict[str, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    # Deterministic where possible. Filling fresh tensors would hide the contents of a reused block.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=6, n_head=12, n_embd=768, n_positions=LONGEST, attn_implementation="eager", use_cache=False
    )
    model = GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens_of = torch.Generator().manual_seed(2)
    losses, counts, times = [], [], []
    for length in lengths():
        tokens = torch.randint(config.vocab_size, (BATCH, length), generator=tokens_of)
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = tokens.cuda()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        counts.append(tokens.numel())
    stats = memory.memory_stats()
    return {
        "losses": losses,
        "tokens_per_second": sum(counts[WARM:]) / sum(times[WARM:]),
        "peak_reserved": memory.max_memory_reserved(),
        "peak_allocated": memory.max_memory_allocated(),
        "allocations": stats["allocation.all.allocated"],
        "device_allocations": stats["num_device_alloc"],
        "retries": stats["num_alloc_retries"],
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def work(allocator: str, settings: str) -> None:
    warnings.simplefilter("ignore")
    if allocator != NATIVE:
        from allotment.torch import memory
        from allotment.torch._install import install

        install(allocator, settings=settings)
    else:
        from torch.cuda import memory
    for name in ("torchvision", "torchaudio"):
        sys.modules[name] = None  # type: ignore[assignment]  # not needed, and may be compiled for another PyTorch
    import transformers  # noqa: F401 - what takes long is done before its turn

    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(train(memory)))


def start(allocator: str, settings: str) -> subprocess.Popen[str]:
    """A process that has imported everything, and trains when told to."""
    environment = os.environ | {
        "PYTORCH_CUDA_ALLOC_CONF": settings if allocator == NATIVE else "",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, __file__, WORKER, allocator, settings]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, complained = process.communicate("go\n")
    if process.returncode != 0:
        sys.exit(f"{process.args} failed:\n{complained[-4000:]}")
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


# The comparison.


def compare(runs: dict[tuple[str, str], list[dict[str, Any]]], mode: str, settings: str) -> dict[str, Any]:
    native, ours = runs[NATIVE, settings], runs[mode, settings]
    expected = native[0]["losses"]
    steps = [
        step
        for each in (*native, *ours)
        for step, pair in enumerate(zip(expected, each["losses"], strict=True))
        if pair[0] != pair[1]
    ]
    return {
        "mode": mode,
        "settings": settings,
        "equal_losses": not steps,
        "first_different_step": min(steps, default=None),
        "native_repeats_itself": all(each["losses"] == expected for each in native),
        "peaks_native": sorted({each["peak_reserved"] for each in native}),
        "peaks_ours": sorted({each["peak_reserved"] for each in ours}),
        "equal_peaks": {each["peak_reserved"] for each in ours} == {each["peak_reserved"] for each in native},
        "speed": speed_of(ours) / speed_of(native),
    }


def speed_of(runs: list[dict[str, Any]]) -> float:
    return statistics.median(each["tokens_per_second"] for each in runs)


def print_tables(runs: dict[tuple[str, str], list[dict[str, Any]]], compared: list[dict[str, Any]]) -> None:
    print(
        "| allocator | settings | tokens/s (least..most) | peak reserved, MiB | peak allocated, MiB "
        "| allocations | device allocations | last loss |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (allocator, settings), each in runs.items():
        speeds = [one["tokens_per_second"] for one in each]
        peaks = "/".join(f"{peak / 2**20:,.0f}" for peak in sorted({one["peak_reserved"] for one in each}))
        print(
            f"| {allocator} | {settings} | {statistics.median(speeds):,.0f} ({min(speeds):,.0f}..{max(speeds):,.0f}) "
            f"| {peaks} | {each[0]['peak_allocated'] / 2**20:,.1f} | {each[0]['allocations']:,} "
            f"| {each[0]['device_allocations']:,} | {each[0]['losses'][-1]:.6f} |"
        )
    print()
    for each in compared:
        losses = (
            "equal in every step"
            if each["equal_losses"]
            else (
                f"different from step {each['first_different_step']}"
                + ("" if each["native_repeats_itself"] else " (the native allocator's runs differ among themselves)")
            )
        )
        peaks = "equal" if each["equal_peaks"] else f"different: {each['peaks_native']} and {each['peaks_ours']}"
        print(
            f"{each['mode']}, {each['settings']}: losses {losses}; peak reserved {peaks};"
            f" {each['speed']:.3f} of the native speed"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", action="append", choices=list(SETTINGS), help="only these")
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument(WORKER, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    names = options.settings or list(SETTINGS)
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {
        (allocator, name): [] for name in names for allocator in (NATIVE, *MODES)
    }
    turns = [(turn, run) for turn in range(options.rounds) for run in (reversed(runs) if turn % 2 else runs)]
    processes = [start(allocator, SETTINGS[name]) for _, (allocator, name) in turns]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # none trains before all are ready
    for (turn, (allocator, name)), process in zip(turns, processes, strict=True):
        result = run(process)
        runs[allocator, name].append(result)
        print(
            f"round {turn + 1}: {allocator}, {name}: {result['tokens_per_second']:,.0f} tokens/s, "
            f"{result['peak_reserved'] >> 20:,} MiB reserved, last loss {result['losses'][-1]}",
            file=sys.stderr,
            flush=True,
        )
    compared = [compare(runs, mode, name) for mode in MODES for name in names]
    first = runs[NATIVE, names[0]][0]
    print(
        f"{first['gpu']}, PyTorch {first['torch']}, GPT-2 of 6 layers, {STEPS} steps of {BATCH} sequences of "
        f"{min(lengths())} to {max(lengths())} tokens, {options.rounds} rounds\n"
    )
    print_tables(runs, compared)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        named = {f"{allocator}, {name}": each for (allocator, name), each in runs.items()}
        options.out.write_text(json.dumps({"runs": named, "compared": compared}, indent=1) + "\n")
    return 0 if all(each["equal_losses"] and each["equal_peaks"] for each in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
