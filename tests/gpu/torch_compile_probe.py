"""torch.compile under our allocator: which modes of compilation work, and where the others fail.

    python tests/gpu/torch_compile_probe.py [--out FILE]

A small model is compiled in a separate process for each mode and each allocator, and its results are compared with
those of the uncompiled model. docs/pytorch.md explains the failing calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ALLOCATORS = ("native", "installed", "patched")
WAYS: dict[str, tuple[str, dict[str, bool]]] = {
    "default": ("default", {}),
    "reduce-overhead": ("reduce-overhead", {}),
    "reduce-overhead, no checks of live memory": ("reduce-overhead", {"slow_path_cudagraph_asserts": False}),
    "reduce-overhead, cudagraph_trees off": ("reduce-overhead", {"cudagraph_trees": False}),
}
"""Mode of torch.compile, and settings of torch._inductor.config.triton."""
WORKER = "--worker"


def compile_and_run(mode: str, settings: dict[str, bool]) -> dict[str, Any]:
    import torch
    import torch._inductor.config as inductor

    for name, value in settings.items():
        setattr(inductor.triton, name, value)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
    compiled = torch.compile(model, mode=mode)
    for step in range(6):
        x = torch.randn(32, 64, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad()
        compiled(x).square().sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        for ours, plain in zip(gradients, model.parameters(), strict=True):
            if not torch.allclose(ours, plain.grad, rtol=1e-3, atol=1e-3):
                return {"works": False, "error": f"wrong gradients in step {step}"}
    return {"works": True}


def work(allocator: str, way: str) -> None:
    warnings.simplefilter("ignore")
    if allocator != "native":
        from allotment.torch._install import install

        install("hooks", settings="", patch=allocator == "patched")
    try:
        result = compile_and_run(*WAYS[way])
    except Exception as error:
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if "cudagraph" in frame.filename]
        words = str(error).strip().splitlines() or [""]
        result = {
            "works": False,
            "error": f"{type(error).__name__}: {words[0]}",
            "called": places[-1].line if places else "",
        }
    print(json.dumps(result))


def run(allocator: str, way: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, WORKER, allocator, way],
        env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": ""},
        capture_output=True,
        text=True,
    )
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        result = {"works": False, "error": f"the process ended with {done.returncode}: {last}"}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")
    parser.add_argument(WORKER, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    with ThreadPoolExecutor() as threads:  # each waits for a process
        pending = {way: {each: threads.submit(run, each, way) for each in ALLOCATORS} for way in WAYS}
        results = {way: {each: reported.result() for each, reported in runs.items()} for way, runs in pending.items()}
    print("| torch.compile | " + " | ".join(ALLOCATORS) + " |")
    print("|---|" + "---|" * len(ALLOCATORS))
    for way, by_allocator in results.items():
        cells = ["works" if each["works"] else each["error"].replace("|", "\\|") for each in by_allocator.values()]
        print(f"| {way} | " + " | ".join(cells) + " |")
    print()
    for way, by_allocator in results.items():
        for allocator, each in by_allocator.items():
            if each.get("called"):
                print(f"{way}, {allocator}: stopped at `{each['called']}`")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
