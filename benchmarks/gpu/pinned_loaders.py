"""Data loaders and offloading under PyTorch's own pinned memory and under ours: bytes pinned, seconds, contents.

    python benchmarks/gpu/pinned_loaders.py [--rounds N] [--programs NAME]... [--no-work] [--out FILE]

Each run is a separate process, and runs of the three allocators (native, "torch", "tight") take turns, in reverse order
every second round. `--python` names the interpreter, which may have another PyTorch than this one.

    images      a DataLoader with workers: batches of 48 images of 3 x 224 x 224 floats and labels; a convolution each
    tokens      a DataLoader with workers: batches of sequences whose length changes; a matrix product each
    clips       a DataLoader with workers: batches of recordings of any length, 5 to 40 MiB
    offload     the state of an optimizer in pinned memory, tensors of a language model's shapes: to the device and back

Contents: of each batch the first, the middle and the last elements are copied on the device, behind the copy from
pinned memory and without a wait. They are compared with the dataset's values after the run, which shows a block that
was reused too early. "asked" is the peak of the bytes of live tensors in pinned memory, "pinned" the peak of what the
allocator holds for them and for copies in progress. How far a loader runs ahead differs from run to run, and both
figures with it;
`tests/gpu/pinned_programs.py` compares decisions one by one. Exits with 1 if contents differ.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODES = ("native", "torch", "tight")
PROGRAMS = ("images", "tokens", "clips", "offload")
WORKER = "--worker"
SOURCE = Path(__file__).resolve().parents[2] / "src"
MIB = 1 << 20
SLICE = 256
LAYERS, WIDTH = 6, 5_000
"""Dimensions of the offloaded model: matrices of WIDTH x 4 WIDTH floats take 381 MiB, which PyTorch rounds to 512."""


# One run.


class Asked:
    """The bytes of the live tensors, and their peak."""

    def __init__(self, torch: Any) -> None:
        self.live = self.peak = 0
        self._lock = threading.RLock()  # a garbage collection may run
        pin = torch.Tensor.pin_memory

        def pin_memory(tensor: Any, *args: Any) -> Any:
            pinned = pin(tensor, *args)
            self._change(pinned.nbytes)
            weakref.finalize(pinned, self._change, -pinned.nbytes)
            return pinned

        torch.Tensor.pin_memory = pin_memory

    def _change(self, by: int) -> None:
        with self._lock:
            self.live += by
            self.peak = max(self.peak, self.live)


class Contents:
    """The part of each batch that reached the device, beside what was sent."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, Any]] = []

    def note(self, on_device: Any, sent: list[Any]) -> None:
        """`sent`: the value of the first, the middle and the last elements of the batch."""
        flat = on_device.reshape(-1)
        for start, value in zip((0, flat.numel() // 2, flat.numel() - SLICE), sent, strict=True):
            self.kept.append((flat[start : start + SLICE].clone(), value))

    def wrong(self) -> int:
        return sum(bool((part.cpu() != value).any()) for part, value in self.kept)


def loader_of(torch: Any, name: str) -> Iterator[tuple[Any, list[Any]]]:
    """Yield batches in pinned memory, each with the values at its beginning, middle and end."""
    from torch.utils.data import DataLoader, Dataset

    draw = random.Random(7)
    if name == "images":
        shapes = [(48, 3, 224, 224)] * 120 + [(17, 3, 224, 224)]
    elif name == "tokens":
        shapes = [(32, draw.randrange(128, 2049, 8), 64) for _ in range(150)]
    else:
        shapes = [(draw.randrange(5 * MIB, 40 * MIB) // 4,) for _ in range(120)]

    class Batches(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(shapes)

        def __getitem__(self, number: int) -> Any:
            batch = torch.full(shapes[number], float(number + 1))
            return batch, torch.full((shapes[number][0] if len(shapes[number]) > 1 else 1,), number)

    loader = DataLoader(Batches(), batch_size=None, num_workers=4, prefetch_factor=2, pin_memory=True)
    for number, (batch, labels) in enumerate(loader):
        yield (batch, labels), [float(number + 1)] * 3


def feed(torch: Any, name: str, work: bool, contents: Contents) -> None:
    layer = torch.nn.Conv2d(3, 32, 7, stride=2).cuda() if work and name == "images" else None
    weight = torch.empty(64, 512, device="cuda").fill_(0.01)
    total = torch.zeros((), device="cuda")
    for (batch, labels), sent in loader_of(torch, name):
        batch = batch.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        contents.note(batch, sent)
        if not work:
            continue
        if layer is not None:
            total = total + layer(batch).mean() + labels.sum()
        elif name == "tokens":
            total = total + (batch @ weight).mean() + labels.sum()
        else:
            total = total + batch.square().mean()


def offload(torch: Any, work: bool, contents: Contents) -> None:
    """The states of an optimizer: each step copies one matrix after the other to the device, and its new state back."""
    states = [torch.empty(WIDTH, 4 * WIDTH, pin_memory=False).fill_(layer).pin_memory() for layer in range(LAYERS)]
    states += [torch.full((WIDTH,), float(layer)).pin_memory() for layer in range(LAYERS)]
    for step in range(3):
        for layer, state in enumerate(states):
            moment = state.to("cuda", non_blocking=True)
            if work:
                moment += 1
                contents.note(moment, [float(layer % LAYERS + step + 1)] * 3)
            else:
                contents.note(moment, [float(layer % LAYERS)] * 3)
            state.copy_(moment, non_blocking=True)
    torch.cuda.synchronize()


def run_one(mode: str, name: str, work: bool) -> dict[str, Any]:
    import torch

    if mode != "native":
        import allotment.torch

        allotment.torch.install(pinned=mode)
    torch.cuda.init()
    torch.ones(100).pin_memory().cuda(non_blocking=True)
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    asked, contents = Asked(torch), Contents()
    torch.cuda.reset_peak_host_memory_stats()
    began = time.perf_counter()
    if name == "offload":
        offload(torch, work, contents)
    else:
        feed(torch, name, work, contents)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    stats = torch.cuda.host_memory_stats()
    return {
        "torch": torch.__version__,
        "seconds": seconds,
        "asked": asked.peak,
        "pinned": stats["allocated_bytes.peak"],
        "driver_calls": stats["num_host_alloc"],
        "driver_ms": stats["host_alloc_time.total"] / 1000,
        "compared": len(contents.kept),
        "wrong": contents.wrong(),
    }


# The command.


def run(python: str, mode: str, name: str, work: bool) -> dict[str, Any]:
    command = [python, __file__, WORKER, mode, name, *([] if work else ["--no-work"])]
    done = subprocess.run(command, capture_output=True, text=True, env=None)
    if done.returncode != 0:
        raise SystemExit(f"{name} under {mode} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--no-work", action="store_true", help="only copies, for a driver without kernels")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument(WORKER, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        sys.path.insert(0, str(SOURCE))
        print(json.dumps(run_one(*options.worker, not options.no_work)))
        return 0
    figures: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in options.programs:
        found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
        for turn in range(options.rounds):
            for mode in MODES if turn % 2 == 0 else reversed(MODES):
                found[mode].append(run(options.python, mode, name, not options.no_work))
        figures[name] = found
        if len(figures) == 1:
            print(f"PyTorch {found['native'][0]['torch']}, {options.rounds} rounds in turns, medians (least..most)\n")
            print(
                "| program | allocator | MiB asked | MiB pinned | pinned / asked | driver calls, ms | s | of native's |"
                " wrong |"
            )
            print("|---|---|---|---|---|---|---|---|---|")
        for mode in MODES:
            print(row(name, mode, found), flush=True)
    wrong = sum(one["wrong"] for found in figures.values() for runs in found.values() for one in runs)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if wrong else 0


def row(name: str, mode: str, found: dict[str, list[dict[str, Any]]]) -> str:
    def median(key: str) -> float:
        return statistics.median(one[key] for one in found[mode])

    seconds = [one["seconds"] for one in found[mode]]
    ratio = statistics.median(one["pinned"] / one["asked"] for one in found[mode])
    native = statistics.median(one["seconds"] for one in found["native"])
    return (
        f"| {name} | {mode} | {median('asked') / MIB:.0f} | {median('pinned') / MIB:.0f}"
        f" | {ratio:.3f} | {median('driver_calls'):.0f}, {median('driver_ms'):.0f}"
        f" | {median('seconds'):.2f} ({min(seconds):.2f}..{max(seconds):.2f}) | {median('seconds') / native:.3f}"
        f" | {sum(one['wrong'] for one in found[mode])} of {sum(one['compared'] for one in found[mode])} |"
    )


if __name__ == "__main__":
    sys.exit(main())
