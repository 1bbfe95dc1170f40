"""Four programs under PyTorch's allocator, plain and expandable, and under dense placement: outputs, memory, speed.

    python benchmarks/gpu/dense_programs.py [--rounds N] [--program NAME]... [--out FILE]
    python benchmarks/gpu/dense_programs.py --largest-batch [--limit 8GiB] [--program NAME]...
    python benchmarks/gpu/dense_programs.py --record FOLDER [--program NAME]...

train       a transformer trained on batches of changing length
generate    a transformer that writes, with caches of keys and values that grow by a token at a time
unet        a convolutional U-Net trained on images of changing sizes
serve       two models served in turns, with batches of changing size

Each run is a separate process; runs of the three allocators take turns, in reverse order every second round. Exits with
1 if an output differs in any bit. With --largest-batch: the largest batch that fits under the limit for each allocator,
first predicted by replaying recordings of runs without a limit, then tried, several at a time. With --record: a history
of each program under each allocator, to be replayed elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

DEFAULT, EXPANDABLE, DENSE = "default", "expandable", "dense"
KINDS = (DEFAULT, EXPANDABLE, DENSE)
REPLAYED = {DEFAULT: "", EXPANDABLE: "expandable_segments:True", DENSE: "placement:dense"}
WORKER = "--worker"
WARM = {"train": 5, "generate": 5, "unet": 40, "serve": 5}
"""Steps that are not timed: they load kernels, and cuDNN plans every new shape."""
BATCHES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
FREE_RUNS, LIMITED_RUNS = 3, 10
"""The number of runs that share the GPU's memory where speed does not matter: without a limit, and with one."""


# The programs: each yields, after every step, its result and the number of units.


def transformer(width: int, layers: int, heads: int) -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def train(batch: int) -> Iterator[tuple[Any, int]]:
    import torch
    from torch import nn

    # The other form of attention sums gradients in a different order each time, whatever PyTorch's settings.
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    draw = random.Random(5)
    torch.manual_seed(1)
    embed, head = nn.Embedding(8192, 768).cuda(), nn.Linear(768, 8192).cuda()
    model = transformer(768, 8, 12).cuda()
    parameters = [*embed.parameters(), *model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    source = torch.Generator().manual_seed(2)
    for _ in range(40):
        tokens = torch.randint(8192, (batch, draw.randrange(64, 1025, 8)), generator=source).cuda()
        loss = nn.functional.cross_entropy(head(model(embed(tokens))).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach(), tokens.numel()


def generate(batch: int) -> Iterator[tuple[Any, int]]:
    import torch
    from torch import nn

    draw = random.Random(7)
    torch.manual_seed(1)
    width, heads, layers = 2048, 16, 16
    linear = [(nn.Linear(width, 3 * width), nn.Linear(width, width)) for _ in range(layers)]
    weights = [(qkv.half().cuda(), out.half().cuda()) for qkv, out in linear]
    with torch.no_grad():
        for _ in range(14):
            length = draw.randrange(200, 700)
            hidden = torch.randn(batch, length, width, device="cuda").half()
            caches: list[Any] = [None] * layers
            written = 0
            for _ in range(draw.randrange(40, 120)):
                for i, (qkv, out) in enumerate(weights):
                    query, key, value = qkv(hidden).view(batch, -1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
                    if caches[i] is not None:
                        key, value = (torch.cat(pair, dim=2) for pair in zip(caches[i], (key, value), strict=True))
                    caches[i] = key, value
                    attended = torch.softmax(query @ key.transpose(-1, -2) / 11.3, dim=-1) @ value
                    hidden = hidden + out(attended.transpose(1, 2).flatten(2))
                hidden = nn.functional.layer_norm(hidden[:, -1:], (width,))
                written += batch
            yield hidden.float().sum(), written


def unet(batch: int) -> Iterator[tuple[Any, int]]:
    import torch
    from torch import nn

    def block(inside: int, outside: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(8, outside),
            nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.SiLU(),
        ).cuda()

    draw = random.Random(3)
    torch.manual_seed(1)
    widths = [64, 128, 256, 512]
    down = [block(inside, outside) for inside, outside in itertools.pairwise([3, *widths])]
    up = [block(2 * width if width == 512 else 3 * width, width) for width in reversed(widths[:-1])]
    last = nn.Conv2d(64, 3, 1).cuda()
    parameters = [p for module in [*down, *up, last] for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    source = torch.Generator().manual_seed(2)
    sizes = [(draw.randrange(64, 321, 32), draw.randrange(64, 321, 32)) for _ in range(40)]
    for height, width in sizes * 2:
        image = torch.randn(batch, 3, height, width, generator=source).cuda()
        levels, value = [], image
        for module in down:
            value = module(value)
            levels.append(value)
            value = nn.functional.avg_pool2d(value, 2)
        value = levels.pop()
        for module in up:
            skip = levels.pop()
            value = nn.functional.interpolate(value, size=skip.shape[-2:])
            value = module(torch.cat([value, skip], dim=1))
        loss = (last(value) - image).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.detach(), batch


def serve(batch: int) -> Iterator[tuple[Any, int]]:
    import torch
    from torch import nn

    # cuDNN makes a plan for every new shape, on the host, which takes longer than everything that is measured.
    torch.backends.cuda.enable_cudnn_sdp(False)
    draw = random.Random(9)
    torch.manual_seed(1)
    large = transformer(1024, 12, 16).half().cuda().eval()
    wide = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).half().cuda()
    with torch.no_grad():
        for turn in range(80):
            size = draw.randrange(1, 2 * batch)
            if turn % 2:
                value = large(torch.randn(size, draw.randrange(32, 1025), 1024, device="cuda").half())
            else:
                value = wide(torch.randn(size, draw.randrange(64, 2049), 4096, device="cuda").half())
            yield value.float().sum(), size


PROGRAMS: dict[str, Callable[[int], Iterator[tuple[Any, int]]]] = {
    "train": train, "generate": generate, "unet": unet, "serve": serve,
}  # fmt: skip
BATCH = {"train": 8, "generate": 96, "unet": 32, "serve": 32}
"""Arguments of the runs: large enough for the GPU to be the bottleneck, not the host that launches kernels."""
STEPS_TO_FIT = {"generate": 5}
"""Programs whose first steps show whether a batch fits; the others run to their end."""


# One run.


def work(program: str, kind: str, batch: int, limit: int, record: str) -> None:
    warnings.simplefilter("ignore")
    import torch

    if kind == DENSE:
        from allotment.torch import memory
        from allotment.torch._install import install

        install(settings="placement:dense")
    else:
        from torch.cuda import memory
    # Deterministic where possible. Filling fresh tensors would hide the contents of a reused block.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    if record:
        memory._record_memory_history(max_entries=2_000_000, stacks="python", context=None)
    if limit:
        memory.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    print("ready", flush=True)
    sys.stdin.readline()
    outputs, units, times, told = [], [], [], []
    torch.cuda.synchronize()
    start = time.perf_counter()
    try:
        steps = STEPS_TO_FIT.get(program) if limit or record else None
        for output, count in itertools.islice(PROGRAMS[program](batch), steps):
            told.append(time.perf_counter() - start)
            outputs.append(output.item())
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            units.append(count)
            start = time.perf_counter()
    except torch.OutOfMemoryError:
        print(json.dumps({"out_of_memory": True}))
        return
    if record:
        memory._dump_snapshot(record)
    warm = WARM[program] if len(times) > WARM[program] else 0
    print(json.dumps({
        "outputs": outputs,
        "units_per_second": sum(units[warm:]) / sum(times[warm:]),
        "units": units,
        "seconds": times,
        "seconds_of_host": told,
        "peak_reserved": memory.max_memory_reserved(),
        "peak_allocated": memory.max_memory_allocated(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }))  # fmt: skip


def start(program: str, kind: str, batch: int, limit: int = 0, record: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTORCH_CUDA_ALLOC_CONF": REPLAYED[EXPANDABLE] if kind == EXPANDABLE else "",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, __file__, WORKER, program, kind, str(batch), str(limit), record or "-"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    told, complained = process.communicate("go\n")
    if process.returncode != 0:
        sys.exit(f"{process.args} failed:\n{complained[-4000:]}")
    result: dict[str, Any] = json.loads(told.splitlines()[-1])
    return result


# The comparison.


def best_speed(runs: list[dict[str, Any]], warm: int) -> float:
    """Return units per second if every step took its best time: a step is the same work in all rounds."""
    seconds = [min(steps) for steps in zip(*(run["seconds"] for run in runs), strict=True)]
    return sum(runs[0]["units"][warm:]) / sum(seconds[warm:])


def compare(programs: list[str], rounds: int) -> tuple[dict[str, Any], bool]:
    found: dict[str, Any] = {}
    equal = True
    print(
        "| program | allocator | peak reserved, MiB | peak allocated, MiB | ratio | units/s (each) | of default "
        "| best of each step, of default |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for program in programs:
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        kinds = [kind for turn in range(rounds) for kind in (reversed(KINDS) if turn % 2 else KINDS)]
        turns = [(kind, start(program, kind, BATCH[program])) for kind in kinds]
        for _, process in turns:
            assert process.stdout is not None
            process.stdout.readline()  # none runs before all are ready
        for kind, process in turns:
            runs[kind].append(finish(process))
        expected = runs[DEFAULT][0]["outputs"]
        speeds = {kind: [run["units_per_second"] for run in runs[kind]] for kind in KINDS}
        speed = {kind: statistics.median(speeds[kind]) for kind in KINDS}
        best = {kind: best_speed(runs[kind], WARM[program]) for kind in KINDS}
        for kind in KINDS:
            same = all(run["outputs"] == expected for run in runs[kind])
            equal = equal and same
            reserved = max(run["peak_reserved"] for run in runs[kind])
            allocated = max(run["peak_allocated"] for run in runs[kind])
            print(
                f"| {program} | {kind}{'' if same else ' (OUTPUTS DIFFER)'} | {reserved / 2**20:,.0f} "
                f"| {allocated / 2**20:,.0f} | {reserved / allocated:.3f} "
                f"| {speed[kind]:,.1f} ({', '.join(f'{each:,.1f}' for each in speeds[kind])}) "
                f"| {speed[kind] / speed[DEFAULT]:.3f} | {best[kind] / best[DEFAULT]:.3f} |",
                flush=True,
            )
        found[program] = runs
    print(
        f"outputs {'equal in every bit' if equal else 'DIFFER'}; {found[programs[0]][DEFAULT][0]['gpu']}, "
        f"PyTorch {found[programs[0]][DEFAULT][0]['torch']}"
    )
    return found, equal


def foretell(program: str, limit: int, batch: int) -> dict[str, bool]:
    """Return which allocators would fit, by replaying a recording of a run without a limit."""
    from allotment.lab.replay.run import read_recording

    with tempfile.TemporaryDirectory() as folder:
        record = str(Path(folder) / "run.pickle")
        if finish(start(program, EXPANDABLE, batch, record=record)).get("out_of_memory"):
            return dict.fromkeys(KINDS, False)
        recording = read_recording(record)
        return {kind: recording.fits(limit, REPLAYED[kind]) for kind in KINDS}


def fits(program: str, limit: int, run: tuple[str, int]) -> bool:
    kind, batch = run
    return not finish(start(program, kind, batch, limit=limit)).get("out_of_memory")


def largest_foretold_and_real(program: str, limit: int) -> dict[str, dict[str, int]]:
    runs = [(kind, batch) for batch in BATCHES for kind in KINDS]
    foreseen = {batch: dict.fromkeys(KINDS, False) for batch in BATCHES}
    with ThreadPoolExecutor(FREE_RUNS) as pool:
        for at in range(0, len(BATCHES), FREE_RUNS):
            some = BATCHES[at : at + FREE_RUNS]
            foreseen |= zip(some, pool.map(partial(foretell, program, limit), some), strict=True)
            if not any(foreseen[some[-1]].values()):
                break  # larger ones need more still
    with ThreadPoolExecutor(LIMITED_RUNS) as pool:
        real = dict(zip(runs, pool.map(partial(fits, program, limit), runs), strict=True))
    return {
        "foretold": {kind: max((batch for batch in BATCHES if foreseen[batch][kind]), default=0) for kind in KINDS},
        "real": {kind: max((batch for batch in BATCHES if real[kind, batch]), default=0) for kind in KINDS},
    }


def largest_batches(programs: list[str], limit: int) -> dict[str, Any]:
    print(f"largest batch of {BATCHES} under {limit / 2**30:.1f} GiB: foretold by replay, then run")
    found = {}
    for program in programs:
        found[program] = largest_foretold_and_real(program, limit)
        print(program, found[program], flush=True)
    return found


def record_all(programs: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for program, kind in itertools.product(programs, KINDS):
        told = finish(start(program, kind, BATCH[program], record=str(folder / f"{program}.{kind}.pickle")))
        print(program, kind, told["peak_reserved"], told["peak_allocated"], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Programs under three ways to place memory.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--program", action="append", choices=list(PROGRAMS))
    parser.add_argument("--largest-batch", action="store_true")
    parser.add_argument("--limit", default="8GiB")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(WORKER, nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        program, kind, batch, limit, record = options.worker
        work(program, kind, int(batch), int(limit), "" if record == "-" else record)
        return 0
    programs = options.program or list(PROGRAMS)
    if options.record:
        record_all(programs, options.record)
        return 0
    if options.largest_batch:
        from allotment._settings import parse_size

        found, equal = largest_batches(programs, parse_size(options.limit)), True
    else:
        found, equal = compare(programs, options.rounds)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
