"""Kinds of memory at the peak: what `explain` takes blocks for, beside the categories of PyTorch's memory profiler.

    python benchmarks/gpu/kinds_agreement.py --record FOLDER [PROGRAM ...]   on a GPU: FOLDER/PROGRAM.pickle and .json
    python benchmarks/gpu/kinds_agreement.py --compare FOLDER                anywhere: agreement in bytes

Each program runs in a process of its own under `torch.profiler` and with its history recorded, both at once. Compared
are the blocks that the profiler knows at its peak, each by its address: the profiler follows every tensor through every
operation, `explain` has only stacks, sizes and lifetimes. The first command needs PyTorch and no Allotment, the second
Allotment and no PyTorch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = "--worker"
MIB = 1 << 20
STEPS = 5
OURS = {
    "PARAMETER": "parameters",
    "OPTIMIZER_STATE": "optimizer",
    "GRADIENT": "gradients",
    "ACTIVATION": "activations",
    "TEMPORARY": "temporaries",
    "AUTOGRAD_DETAIL": "temporaries",
    "INPUT": "activations",
}
"""The profiler's categories in our words. Inputs of a step are kept for its backward pass, as activations are."""


def mlp() -> None:
    """Linear layers, trained with AdamW."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) if i % 2 == 0 else torch.nn.ReLU() for i in range(12)])
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        data = torch.randn(4096, 1024, device="cuda")
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def convolutions() -> None:
    """A small network of convolutions, trained with SGD and momentum; gradients are zeroed in place."""
    import torch

    layers: list[Any] = []
    for channels in (3, 32, 64, 64):
        layers += [torch.nn.Conv2d(channels, max(channels, 32) if channels != 32 else 64, 3, padding=1)]
        layers += [torch.nn.BatchNorm2d(layers[-1].out_channels), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        images = torch.randn(32, 3, 96, 96, device="cuda")
        targets = torch.randint(10, (32,), device="cuda")
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()


def transformer() -> None:
    """An encoder of PyTorch's own layers, trained with AdamW under bfloat16 autocast."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        data = torch.randn(16, 256, 512, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def accumulating() -> None:
    """Gradients of four batches are added up before each step of the optimizer."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        for _ in range(4):
            data = torch.randn(512, 2048, device="cuda")
            (model(data).mean() / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def checkpointed() -> None:
    """Layers whose forward pass is done again in the backward pass."""
    import torch
    from torch.utils.checkpoint import checkpoint

    blocks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)) for _ in range(4)
    ).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters())
    for _ in range(STEPS):
        hidden = torch.randn(2048, 1024, device="cuda")
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program for program in (mlp, convolutions, transformer, accumulating, checkpointed)
}


def record(name: str, file: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="all")
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        PROGRAMS[name]()
        torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(str(file))
    file.with_suffix(".json").write_text(json.dumps(at_peak(profiler._memory_profile())))


def at_peak(found: Any) -> dict[str, Any]:
    """The blocks at the profiler's peak: when, and of each its address, size and category."""
    from torch.profiler._memory_profiler import Action

    live: dict[Any, tuple[int, int, int]] = {}
    total, most, when, blocks = 0, 0, 0, []
    for time_ns, action, (key, version), size in found.timeline:
        if key.device.type != "cuda":
            continue
        is_tensor = hasattr(key, "storage")
        if action in (Action.PREEXISTING, Action.CREATE):
            total += size
            if is_tensor:
                live[key] = (key.storage.ptr, size, version)
        elif action == Action.INCREMENT_VERSION:
            if is_tensor:
                live[key] = (key.storage.ptr, size, version + 1)
        else:
            total -= size
            live.pop(key, None)
        if total > most:
            most, when = total, time_ns
            blocks = [(each, *about) for each, about in live.items()]
    rows = []
    for key, address, size, version in blocks:
        category = found._categories.get(key, version)
        rows.append((address, size, category.name if category is not None else None))
    return {"time_ns": when, "peak_bytes": most, "blocks": rows}


def record_all(folder: Path, names: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        file = folder / f"{name}.pickle"
        done = subprocess.run([sys.executable, __file__, WORKER, name, str(file)], check=False)
        print(f"{name}: " + (f"{file.stat().st_size:,} bytes" if done.returncode == 0 else "FAILED"), flush=True)
        failed += done.returncode != 0
    return min(failed, 1)


def compare(file: Path, told: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Bytes by the profiler's category and ours, of the blocks that both know."""
    import numpy as np

    from allotment.lab import read_recording
    from allotment.lab.explain.kinds import kinds_of

    recording = read_recording(file)
    kinds = kinds_of(recording)
    times = recording.trace.time_us
    entry = int(np.searchsorted(times, told["time_ns"] // 1000, "right"))
    if not times[0] <= told["time_ns"] // 1000 <= times[-1]:  # the two clocks differ: take our own peak
        entry = recording.entry_of(int(np.argmax(recording.in_use())) - 1) + 1
    addresses = np.array([address for address, _, _ in told["blocks"]], dtype=np.uint64)
    lives = recording.lives_at(addresses, np.full(len(addresses), entry))
    found: Counter[tuple[str, str]] = Counter()
    for life, (_, size, category) in zip(lives.tolist(), told["blocks"], strict=True):
        ours = kinds.names[kinds.of_life[life]] if life >= 0 else "not recorded"
        found[category or "none", ours] += size
    return found


def compare_all(folder: Path) -> int:
    for name in PROGRAMS:
        file = next((each for each in sorted(folder.glob(f"{name}.pickle*"))), None)
        if file is None:
            continue
        told = json.loads((folder / f"{name}.json").read_text())
        found = compare(file, told)
        known = {pair: size for pair, size in found.items() if pair[0] in OURS and pair[1] != "not recorded"}
        agreed = sum(size for (theirs, ours), size in known.items() if OURS[theirs] == ours)
        total = sum(known.values())
        print(f"{name}: {agreed / max(total, 1):.1%} of {total / MIB:,.1f} MiB agree")
        for (theirs, ours), size in found.most_common():
            mark = " " if OURS.get(theirs) == ours else "*"
            print(f"  {mark} {size / MIB:10,.1f} MiB  {theirs:16} {ours}")
    return 0


def main() -> int:
    if sys.argv[1:2] == [WORKER]:
        record(sys.argv[2], Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--record", type=Path, metavar="FOLDER")
    which.add_argument("--compare", type=Path, metavar="FOLDER")
    parser.add_argument("programs", nargs="*", choices=[[], *PROGRAMS], default=[])
    chosen = parser.parse_args()
    if chosen.record is not None:
        return record_all(chosen.record, chosen.programs or list(PROGRAMS))
    return compare_all(chosen.compare)


if __name__ == "__main__":
    raise SystemExit(main())
