"""Kinds of memory at the peak: those that `explain` finds, beside the categories of PyTorch's memory profiler.

    python benchmarks/gpu/kinds_agreement.py --out FOLDER [PROGRAM ...]             records on a GPU, compares
    python benchmarks/gpu/kinds_agreement.py --out FOLDER --recorded [PROGRAM ...]  compares earlier recordings Each
    program runs in a separate process under `torch.profiler` and with its history recorded, both at once, in
FOLDER/PROGRAM.pickle.gz and FOLDER/PROGRAM.categories.json; results are in FOLDER/results.md and .json. It compares the
blocks that the profiler knows at its peak, by address: the profiler follows every tensor through every operation,
`explain` has only stacks, sizes and lifetimes. Recording needs no Allotment, comparing neither PyTorch nor a GPU. Exits
with 1 if less than 90 % of the bytes of a program agree, temporaries of the optimizer excluded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded_programs import ENDING, keep_snapshot, main, start_recording

MIB = 1 << 20
ENOUGH = 0.9
OF_OPTIMIZER = "temporaries of the optimizer's step"
WHY_OF_OPTIMIZER = (
    "the profiler takes what depends on gradients and is used for the next ones for parameters, also results that the"
    " optimizer makes and frees inside of its step."
)
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
"""The profiler's categories in our words. Inputs of a step are kept for its backward pass, like activations."""


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
    """Layers whose forward pass is repeated in the backward pass."""
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

    start_recording()
    # The host side of the profiler reports memory.
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        PROGRAMS[name]()
        torch.cuda.synchronize()
    keep_snapshot(file)
    categories_of(file).write_text(json.dumps(at_peak(profiler._memory_profile())))


def categories_of(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(ENDING) + ".categories.json")


def at_peak(found: Any, device: str = "cuda") -> dict[str, Any]:
    """Return the blocks at the profiler's peak: the time, and each block's address, size and category."""
    from torch.profiler._memory_profiler import Action

    live: dict[Any, tuple[int, int, int]] = {}
    total, most, when, blocks = 0, 0, 0, []
    for time_ns, action, (key, version), size in found.timeline:
        if key.device.type != device:
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


def compare(file: Path, reported: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Return bytes by the profiler's category and ours, of the blocks that the profiler knows at its peak.

    The profiler counts as parameters all results that depend on gradients and are used for the next ones, even if the
    optimizer's step makes and frees them: these are counted separately.
    """
    import numpy as np

    from allotment.lab import read_recording
    from allotment.lab.explain.stack_marks import Mark
    from allotment.lab.explain.study import Study

    recording = read_recording(file)
    study = Study(recording)
    addresses = np.array([address for address, _, _ in reported["blocks"]], dtype=np.uint64)
    sizes = np.array([size for _, size, _ in reported["blocks"]], dtype=np.int64)

    def lives_at(entry: int) -> Any:
        lives = recording.lives_at(addresses, np.full(len(addresses), entry))
        same = (lives >= 0) & (study.blocks.size[lives] <= sizes) & (study.blocks.size[lives] > sizes - 2 * MIB)
        return np.where(same, lives, -1)

    def known_bytes(lives: Any) -> int:
        return int(sizes[lives >= 0].sum())

    lives = lives_at(int(np.searchsorted(recording.trace.time_us, reported["time_ns"] // 1000, "right")))
    if known_bytes(lives) < 0.99 * sizes.sum():  # the two clocks differ: take the moment with most of these blocks
        lives = max([lives, *map(lives_at, recording.call_entries.tolist())], key=known_bytes)
    found: Counter[tuple[str, str]] = Counter()
    for life, (_, size, category) in zip(lives.tolist(), reported["blocks"], strict=True):
        ours = study.kinds.names[study.kinds.of_life[life]] if life >= 0 else "not recorded"
        is_of_optimizer = life >= 0 and bool(study.origins.marks[life] & Mark.OPTIMIZER)
        if category == "PARAMETER" and ours == "temporaries" and is_of_optimizer:
            ours = OF_OPTIMIZER
        found[category or "none", ours] += size
    return found


def tell(name: str, file: Path) -> dict[str, Any]:
    """Return how many bytes at the peak have the same kind for both, and which differ."""
    reported = json.loads(categories_of(file).read_text())
    found = compare(file, reported)
    known = {pair: size for pair, size in found.items() if pair[0] in OURS and pair[1] != "not recorded"}
    agreed = sum(size for (theirs, ours), size in known.items() if OURS[theirs] == ours)
    compared = sum(known.values())
    of_optimizer = sum(size for (_, ours), size in known.items() if ours == OF_OPTIMIZER)
    return {
        "ok": agreed >= ENOUGH * (compared - of_optimizer) > 0,
        "peak_bytes": reported["peak_bytes"],
        "compared_bytes": compared,
        "agreed_bytes": agreed,
        "optimizer_temporaries_bytes": of_optimizer,
        "pairs": [[theirs, ours, size] for (theirs, ours), size in found.most_common()],
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| Program | Peak, MiB | Both know, MiB | Agree | Without optimizer's temporaries | Where not, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        compared, agreed = row["compared_bytes"], row["agreed_bytes"]
        shares = [agreed / max(total, 1) for total in (compared, compared - row["optimizer_temporaries_bytes"])]
        others = [
            f"{theirs} is {ours} {size / MIB:,.1f}"
            for theirs, ours, size in row["pairs"]
            if OURS.get(theirs) != ours and size >= MIB // 10
        ]
        sizes = [f"{each / MIB:,.1f}" for each in (row["peak_bytes"], compared)]
        cells = [row["program"], *sizes, *(f"{share:.1%}" for share in shares), ", ".join(others) or "nowhere"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"PARAMETER is {OF_OPTIMIZER}: {WHY_OF_OPTIMIZER}", ""]


if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, PROGRAMS, record, tell, table))
