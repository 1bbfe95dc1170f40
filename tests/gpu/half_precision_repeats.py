"""Does a Whisper-like model in half precision give the same tokens again, and if not, why?

    python tests/gpu/half_precision_repeats.py --out FILE.md [--seconds 180] [--jobs 6]

The model of `benchmarks/gpu/eight_programs.py` writes 60 tokens greedily for three batches of 4 to 16. It runs again
and again under PyTorch's default placement and expandable segments, both native, and under ours with PyTorch's
placement and with dense placement, each run a process of its own, in these ways:

plain      as it is
blocking   with CUDA_LAUNCH_BLOCKING=1: a difference that goes away is a race
ff, zero   memory that the allocator hands out was filled with 0xff (NaN in half precision) or 0 before: a difference
           between the two, or a NaN, is a kernel that reads what nobody wrote
shifted    after a request of another size, so that addresses differ: a difference is a program that depends on them
no cudnn   without cuDNN, whose choice of a convolution can depend on how much memory is left
seen       the encoder's states and each step's logits are kept, to find the first that differs, and by how much

A table shows for each way how many different outputs each kind gave, and whether they are those of the default. Then,
if it is installed, compute-sanitizer's initcheck looks for reads of memory that nobody wrote, with every tensor in an
allocation of its own (native, caching off), and under dense placement. Exits with 1 if a child failed or was late, or
if a kind of ours differs where both native kinds agree with each other and with themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"))

from eight_programs import Place, drawn, sounds, transcribed, whisper_model

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
KINDS = ("default", "expandable", "ours", "dense")
PLACEMENTS = {"ours": "placement:torch", "dense": "placement:dense"}
WAYS = {"plain": 3, "seen": 1, "blocking": 2, "ff": 2, "zero": 1, "shifted": 2, "no cudnn": 1}
"""How often each kind runs in each way; all first runs come before the second ones."""
STEPS_KEPT = 20
LARGE_BLOCKS, SMALL_BLOCKS = 24, 400


# --- one run ------------------------------------------------------------------------------------------------------


def fill_cache(byte: int) -> None:
    """Leave memory in the allocator's cache that is full of a byte."""
    import torch

    sizes = [64 * MIB] * LARGE_BLOCKS + [MIB - 512] * SMALL_BLOCKS
    held = [torch.full((size,), byte, dtype=torch.uint8, device="cuda") for size in sizes]
    torch.cuda.synchronize()
    del held


def work(kind: str, way: str, keep: str, batches: int, count: int, dry: bool) -> None:
    import torch

    if kind in PLACEMENTS and not dry:
        from allotment.torch._install import install

        install(settings=PLACEMENTS[kind])
    place = Place("cpu" if dry else "cuda", small=dry)
    if dry:
        torch.set_num_threads(1)
    elif way in ("ff", "zero"):
        fill_cache(0xFF if way == "ff" else 0)
    held = torch.zeros(3 * MIB + 4096, device=place.device) if way == "shifted" else None
    if way == "no cudnn":
        torch.backends.cudnn.enabled = False
    kept: dict[str, Any] = {}
    bad = 0

    def see(name: str, value: Any) -> None:
        nonlocal bad
        bad += int(torch.isnan(value).sum())
        if name == "encoder" or int(name.split()[1]) < STEPS_KEPT:
            kept[f"batch {len(outputs)}, {name}"] = value.cpu()

    model = whisper_model(place)
    draw, source = drawn(13)
    outputs: list[Any] = []
    with torch.no_grad():
        for _ in range(batches):
            features = sounds(place, draw, source, model)
            tokens = transcribed(model, features, count, see if way == "seen" else None)
            outputs.append(tokens.cpu().tolist())
    if way == "seen" and keep:
        torch.save(kept, keep)
    del held
    digest = hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:12]
    print(json.dumps({"digest": digest, "nan": bad, "torch": torch.__version__}), flush=True)
    os._exit(0)  # the process has nothing left to say


def start(kind: str, way: str, keep: Path | None, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    environment = os.environ | {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if kind == "expandable" else "",
        "CUDA_LAUNCH_BLOCKING": "1" if way == "blocking" else "0",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--worker", kind, way, str(keep or ""), "3", "60"]
    return ended(command + (["--dry"] if options.dry else []), environment, seconds)


def ended(command: list[str], environment: dict[str, str], seconds: float) -> dict[str, Any]:
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        return {"late": True}
    found = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode != 0 or not found:
        return {"failed": f"exit code {run.returncode}: {(run.stderr or run.stdout).strip()[-400:]}"}
    result: dict[str, Any] = json.loads(found[-1])
    return result | {"said": run.stdout[-4000:] + run.stderr[-4000:]}


# --- what they say ------------------------------------------------------------------------------------------------


def table(found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    lines = ["| way | " + " | ".join(KINDS) + " |", "|---" * (1 + len(KINDS)) + "|"]
    names: dict[str, str] = {}
    for way in WAYS:
        cells = [way]
        for kind in KINDS:
            runs = found.get((way, kind), [])
            digests = [run["digest"] for run in runs if "digest" in run]
            for digest in digests:
                names.setdefault(digest, chr(ord("A") + len(names)))
            text = " ".join(names[digest] for digest in digests)
            nans = sum(run.get("nan", 0) for run in runs)
            troubles = [run.get("failed", "late")[:120] for run in runs if "digest" not in run]
            cells.append("; ".join(filter(None, [text, f"{nans} NaN" if nans else "", *troubles])) or "-")
        lines.append("| " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        "A letter is an output: all tokens of a run. Runs with the same letter are equal in every token.",
    ]


def first_difference(one: Path, other: Path) -> str:
    """Where two kept runs differ first, by how much, and how close the two best tokens were there."""
    import torch

    if not (one.exists() and other.exists()):
        return "not kept"
    left, right = torch.load(one), torch.load(other)
    for name in left:
        if name not in right or left[name].shape != right[name].shape:
            return f"{name}: of another shape"
        if torch.equal(left[name], right[name]):
            continue
        apart = (left[name].double() - right[name].double()).abs()
        text = f"{name}: {int((apart > 0).sum()):,} of {apart.numel():,} values, by {apart.max():.3g} at most"
        if "logits" in name:
            best = left[name].double().topk(2, dim=-1).values
            text += f"; the two best tokens are {(best[:, 0] - best[:, 1]).min():.3g} apart where they are closest"
        chosen = [
            key
            for key in left
            if "logits" in key and key in right and not torch.equal(left[key].argmax(-1), right[key].argmax(-1))
        ]
        return text + (f"; first other token: {chosen[0]}" if chosen else "; no other token")
    return "equal in every bit"


def sanitized(options: argparse.Namespace, seconds: float) -> list[tuple[str, str]]:
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if options.dry or not Path(checker).exists():
        return [("initcheck", "compute-sanitizer is not installed")]

    def one(kind: str, name: str, extra: dict[str, str]) -> tuple[str, str]:
        environment = os.environ | extra | {"HF_HUB_OFFLINE": "1"}
        command = [checker, "--tool", "initcheck", sys.executable, __file__, "--worker", kind, "plain", "", "1", "4"]
        result = ended(command, environment, seconds)
        said = [line for line in result.get("said", "").splitlines() if "=====" in line]
        return name, said[-1] if said else str(result)[:300]

    ways = [("default", "native, caching off", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}), ("dense", "dense", {})]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda way: one(*way), ways))


def verdict(found: dict[tuple[str, str], list[dict[str, Any]]]) -> bool:
    """Whether nothing failed, and ours agree wherever the native kinds agree."""
    good = True
    for way in WAYS:
        digests = {kind: {run["digest"] for run in found.get((way, kind), []) if "digest" in run} for kind in KINDS}
        native = digests["default"] | digests["expandable"]
        good = good and (len(native) != 1 or digests["ours"] | digests["dense"] <= native)
    return good and all("digest" in run for runs in found.values() for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--dry", action="store_true", help="on the processor, in small sizes")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, way, keep, batches, count = options.worker
        work(kind, way, keep, int(batches), int(count) if not options.dry else 5, options.dry)
        return 0
    if options.out is None:
        parser.error("--out FILE is needed")
    end = time.monotonic() + options.seconds
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    checked: Future[list[tuple[str, str]]]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs + 1) as pool:
        kept = {kind: Path(folder) / f"{kind}.pt" for kind in KINDS}
        rounds = range(max(WAYS.values()))
        order = [(way, kind) for turn in rounds for way, times in WAYS.items() if turn < times for kind in KINDS]
        checked = pool.submit(sanitized, options, options.seconds - 10)

        def one(way: str, kind: str) -> dict[str, Any]:
            left = end - time.monotonic() - 5
            return start(kind, way, kept[kind], options, left) if left > 10 else {"late": True}

        runs = [(way, kind, pool.submit(one, way, kind)) for way, kind in order]
        for way, kind, future in runs:
            found[way, kind].append(future.result())
            options.out.write_text("\n".join(["## The same model again and again", "", *table(found)]) + "\n")
        lines = [
            "## The same model again and again",
            "",
            *table(found),
            "",
            "Against the default, where runs were seen:",
            "",
        ]
        lines += [f"- {kind}: {first_difference(kept['default'], kept[kind])}" for kind in KINDS[1:]]
        options.out.write_text("\n".join(lines) + "\n")
        lines += [f"- initcheck, {name}: `{said}`" for name, said in checked.result()]
        options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0 if verdict(found) else 1


if __name__ == "__main__":
    sys.exit(main())
