"""Three PyTorch programs: record, tune, and run again with the suggested line, to compare prediction and result.

    python benchmarks/gpu/tuned_programs.py [--out FILE] [PROGRAM ...]

Each program runs under PyTorch's own allocator with its history recorded, `tune` tries settings of PyTorch's on the
snapshot by replay, and the program runs again under the best of them, and under `expandable_segments:True`: the peak of
reserved memory that was predicted is put beside the real one (goal: equal to 0.1 %). Then a limit is chosen between the
smallest device that the defaults fit on, as replay finds it, and the smallest for the best settings. Under that limit a
program must run out of memory with the defaults, and complete with the settings that `tune` finds. Exits with 1
otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOAL = 0.001
WORKER = "--worker"
SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
ALWAYS = "expandable_segments:True"
STEP = 2 << 20


# The programs. Sizes change from step to step, which makes the allocator work.


def gpt2_varlen() -> None:
    """A small GPT-2, trained on sequences of changing length."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    choose = random.Random(5)
    config = GPT2Config(n_layer=4, n_head=8, n_embd=512, n_positions=1024, attn_implementation="eager", use_cache=False)
    model = GPT2LMHeadModel(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(25):
        tokens = torch.randint(config.vocab_size, (8, choose.randrange(64, 1025, 8))).cuda()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def sampled_graphs() -> None:
    """Layers over neighbourhoods that are sampled anew in each step, so that no two sizes are equal."""
    import torch

    choose = random.Random(7)
    layers = [torch.nn.Linear(512, 512).cuda() for _ in range(3)]
    optimizer = torch.optim.AdamW([parameter for layer in layers for parameter in layer.parameters()])
    for _ in range(60):
        nodes = choose.randrange(20_000, 200_000)
        rows = torch.randn(nodes, 512, device="cuda")
        for layer in layers:
            into = max(1000, int(nodes * choose.uniform(0.4, 0.9)))
            edges = torch.randint(nodes, (into * 2,), device="cuda")
            gathered = rows[edges].view(into, 2, 512).mean(dim=1)
            rows, nodes = torch.relu(layer(gathered)), into
        optimizer.zero_grad(set_to_none=True)
        rows.square().mean().backward()
        optimizer.step()


def growing_caches() -> None:
    """Sequences whose caches grow by a step at a time, as naive text generation makes them; they end at random."""
    import torch

    choose = random.Random(11)
    caches: list[torch.Tensor] = []
    for _ in range(1500):
        if len(caches) < 24 and choose.random() < 0.3:
            caches.append(torch.zeros(choose.randrange(16, 256), 64 * 1024, device="cuda", dtype=torch.float16))
        if not caches:
            continue
        which = choose.randrange(len(caches))
        more = torch.zeros(choose.randrange(1, 32), 64 * 1024, device="cuda", dtype=torch.float16)
        caches[which] = torch.cat([caches[which], more])
        if caches[which].shape[0] > 600 or choose.random() < 0.01:
            del caches[which]


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program for program in (gpt2_varlen, sampled_graphs, growing_caches)
}


def work(name: str, limit: int, snapshot: str) -> None:
    """One run, in a separate process."""
    import torch

    torch.manual_seed(1)
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, stacks="python")
    if limit:
        torch.cuda.set_per_process_memory_fraction((limit + 0.5) / torch.cuda.mem_get_info()[1])
    ended = True
    try:
        PROGRAMS[name]()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        ended = False
    peak = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    if snapshot:
        torch.cuda.memory._dump_snapshot(snapshot)
    print(json.dumps({"ended": ended, "peak_reserved_bytes": peak}))


# Recording, tuning and running again.


def run(name: str, settings: str, limit: int = 0, snapshot: Path | None = None) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != SETTINGS}
    if settings:
        environment[SETTINGS] = settings
    command = [sys.executable, __file__, WORKER, name, "--limit", str(limit), "--snapshot", str(snapshot or "")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} under {settings!r} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def best_of_pytorch(snapshot: Path, goal: str) -> tuple[Any, Any, float]:
    """Return the recording, the best candidate that PyTorch's own allocator knows, and the seconds it took."""
    from allotment.lab.replay.run import read_recording
    from allotment.lab.tune.candidates import is_ours
    from allotment.lab.tune.search import Goal, tune

    begin = time.perf_counter()
    recording = read_recording(snapshot)
    tuned = tune(recording, Goal.parse(goal), budget=30.0)
    own = [each for each in tuned.candidates if not is_ours(each.settings) and each.fits]
    return recording, own[0] if own else None, time.perf_counter() - begin


def compared(name: str, settings: str, predicted: int) -> dict[str, Any]:
    real = run(name, settings)["peak_reserved_bytes"]
    return {
        "settings": settings,
        "predicted_bytes": predicted,
        "real_bytes": real,
        "difference": predicted / real - 1,
        "reached": abs(predicted / real - 1) <= GOAL,
    }


def show(name: str, folder: Path) -> dict[str, Any]:
    recorded = folder / f"{name}.pickle"
    default = run(name, "", snapshot=recorded)
    recording, best, seconds = best_of_pytorch(recorded, "min-memory")
    as_recorded = recording.replay()
    shown: dict[str, Any] = {
        "events": recording.entries,
        "recorded_bytes": default["peak_reserved_bytes"],
        "replayed_bytes": as_recorded.peak_reserved_bytes,
        "matches_recording": as_recorded.matches_recording,
        "tune_seconds": round(seconds, 2),
        "again": [
            compared(name, settings, recording.replay(settings).peak_reserved_bytes)
            for settings in dict.fromkeys((best.settings, ALWAYS))
        ],
    }
    least_default, least_best = recording.fit(""), recording.fit(best.settings)
    if least_best is not None and least_default is not None and least_best + 2 * STEP <= least_default:
        limit = (least_best + least_default) // 2 // STEP * STEP
        failed = folder / f"{name}.oom.pickle"
        under_defaults = run(name, "", limit, failed)
        shown["limit"] = {"limit_bytes": limit, "ended_with_defaults": under_defaults["ended"]}
        if not under_defaults["ended"]:
            _, line, seconds = best_of_pytorch(failed, f"fit:{limit}")
            shown["limit"]["settings"] = line.settings if line is not None else None
            shown["limit"]["tune_seconds"] = round(seconds, 2)
            # First tuned only on what came before the failure; the best of the whole run is the second attempt.
            for settings in (line.settings if line is not None else "", best.settings):
                shown["limit"][f"ended with {settings or 'defaults'}"] = run(name, settings, limit)["ended"]
    return shown


def is_as_predicted(shown: dict[str, Any]) -> bool:
    return all(again["reached"] for again in shown["again"]) and shown["matches_recording"] is not False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), help=", ".join(PROGRAMS))
    parser.add_argument("--out", type=Path)
    parser.add_argument(WORKER, dest="worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.programs[0], arguments.limit, arguments.snapshot)
        return
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.programs:
            report[name] = show(name, Path(folder))
            print(json.dumps({name: report[name]}, indent=2), flush=True)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=2))
    failed_and_fitted = [
        shown["limit"] for shown in report.values() if "limit" in shown and not shown["limit"]["ended_with_defaults"]
    ]
    fitted = any(
        any(value is True for key, value in each.items() if key.startswith("ended with ")) for each in failed_and_fitted
    )
    as_predicted = all(is_as_predicted(shown) for shown in report.values())
    print(f"predicted peaks {'equal' if as_predicted else 'DIFFER from'} the real ones to {GOAL:.1%};", end=" ")
    print("a program that ran out of memory fits with the line" if fitted else "no program ran out and then fitted")
    raise SystemExit(0 if as_predicted and fitted else 1)


if __name__ == "__main__":
    main()
