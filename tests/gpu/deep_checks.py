"""Operations that PyTorch refuses to a plug-in, in deep mode next to PyTorch's own allocator: results must be equal.

    python tests/gpu/deep_checks.py [--only NAME ...] [--limit SECONDS]

Each check is a program that runs natively and in deep mode, each time in a separate process, and prints its findings;
floating-point numbers are printed in full, so equal means equal bit by bit. Ends with 1 if one differs or fails.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKER = "--worker"


def transformer(torch: Any) -> Any:
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(64, 8)).cuda()


def losses(torch: Any, mode: str) -> list[str]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = transformer(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, mode=mode)
    data = torch.Generator().manual_seed(2)
    found = []
    for step in range(12):
        inputs = torch.randn(4, 16 if step % 3 else 24, 64, generator=data).cuda()
        torch.compiler.cudagraph_mark_step_begin()
        loss = compiled(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append(loss.item().hex())
    return found


def compile_reduce_overhead(torch: Any) -> Any:
    return losses(torch, "reduce-overhead")


def compile_max_autotune(torch: Any) -> Any:
    return losses(torch, "max-autotune")


def cudnn_search(torch: Any) -> Any:
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 5)).cuda()
    images = torch.randn(8, 3, 64, 64).cuda()
    return [torch.backends.cudnn.benchmark, [round(model(images).sum().item(), 2) for _ in range(3)]]


class OnTheGpu:
    """A data set whose worker makes each item on the GPU when it is requested."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> Any:
        import torch

        return torch.full((1000,), float(number), device="cuda")


def data_loader(torch: Any) -> Any:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        OnTheGpu(), batch_size=4, num_workers=2, multiprocessing_context="spawn", worker_init_fn=_begin_worker
    )
    return [batch.sum().item() for batch in loader]


def _begin_worker(number: int) -> None:
    _install_if_asked()


def profiler(torch: Any) -> Any:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiled:
        tensor = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        del tensor
    events = [event for event in profiled.events() if event.name == "[memory]" or event.device_memory_usage]
    return sorted(int(event.device_memory_usage) for event in events if event.device_memory_usage)


def history_in_the_viewer(torch: Any) -> Any:
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history(stacks="all")
    model = transformer(torch)
    model(torch.randn(2, 8, 64, device="cuda")).sum().backward()
    shown = torch.cuda.memory._snapshot()
    pickle.loads(pickle.dumps(shown))
    page = _memory_viz.trace_plot(shown)
    frames = [len(entry["frames"]) > 20 for entry in shown["device_traces"][0] if entry["action"] == "alloc"]
    return [len(page) > 10_000, all(frames), [entry["action"] for entry in shown["device_traces"][0]][:200]]


def out_of_memory(torch: Any) -> Any:
    seen = []
    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts[0]))
    kept = torch.arange(1 << 20, device="cuda")
    caught = 0
    for _ in range(1000):
        try:
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            caught += 1
    gc.collect()
    usable = torch.empty(64 << 20, dtype=torch.uint8, device="cuda").numel()
    stats = torch.cuda.memory_stats()
    return [caught, len(seen), stats["num_ooms"], int(kept.sum()), usable, stats["allocated_bytes.all.current"]]


def _child(queue: Any, tensor: Any) -> None:
    _install_if_asked()
    import torch

    queue.put((tensor.sum().item(), torch.cuda.memory_allocated() > 0))


def spawn(torch: Any) -> Any:
    context = torch.multiprocessing.get_context("spawn")
    queue, tensor = context.Queue(), torch.ones(1000, device="cuda")
    process = context.Process(target=_child, args=(queue, tensor))
    process.start()
    reported = queue.get(timeout=120)
    process.join()
    return [reported[0], process.exitcode]


def fork(torch: Any) -> Any:
    tensor = torch.ones(1000, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device="cuda")
            os._exit(1)
        except RuntimeError as error:
            os._exit(0 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 2)
    return [os.waitpid(child, 0)[1], tensor.sum().item()]


def eight_threads(torch: Any) -> Any:
    """Fill tensors, read them on another stream and drop them, for a minute: each keeps its contents to the end."""
    until, wrong, failed = time.monotonic() + 60, [], []

    def work(number: int) -> None:
        draw, kept, own, other = random.Random(number), [], torch.cuda.Stream(), torch.cuda.Stream()
        try:
            while time.monotonic() < until:
                with torch.cuda.stream(own):
                    value = draw.randrange(1 << 30)
                    kept.append((torch.full((draw.randrange(1, 1 << 20),), value, device="cuda"), value))
                if len(kept) > 20:
                    tensor, value = kept.pop(draw.randrange(len(kept)))
                    other.wait_stream(own)
                    with torch.cuda.stream(other):
                        same = (tensor == value).all()
                        tensor.record_stream(other)
                        del tensor
                        if not same.item():  # waits only for this stream
                            wrong.append(number)
        except Exception as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return [wrong, failed, torch.cuda.memory_allocated()]


CHECKS: dict[str, Callable[[Any], Any]] = {
    check.__name__: check
    for check in (
        compile_reduce_overhead, compile_max_autotune, cudnn_search, data_loader, profiler, history_in_the_viewer,
        out_of_memory, spawn, fork, eight_threads,
    )
}  # fmt: skip


def _install_if_asked() -> None:
    if os.environ.get("DEEP_CHECKS_MODE") == "deep":
        import allotment.torch

        allotment.torch.install("deep")


def work(name: str, into: str) -> None:
    _install_if_asked()
    import torch

    Path(into).write_text(json.dumps(CHECKS[name](torch)))


def complaint(output: str) -> str:
    """Return the line that names the error, from the output of a program that failed."""
    lines = [line for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--limit", type=float, default=280, help="seconds for one program")
    parser.add_argument(WORKER, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    wrong = 0
    for name in options.only:
        reported = {}
        began = time.monotonic()
        for mode in ("native", "deep"):
            with tempfile.TemporaryDirectory() as folder:
                into = Path(folder) / "told.json"
                environment = os.environ | {"DEEP_CHECKS_MODE": mode, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
                command = [sys.executable, __file__, WORKER, name, str(into)]
                try:
                    done = subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=False, timeout=options.limit
                    )
                    reported[mode] = (
                        json.loads(into.read_text()) if done.returncode == 0 else f"failed: {complaint(done.stderr)}"
                    )
                except subprocess.TimeoutExpired:
                    reported[mode] = f"not done in {options.limit:.0f} s"
        fine = reported["native"] == reported["deep"] and not str(reported["deep"]).startswith(("failed", "not done"))
        wrong += not fine
        shown = (
            str(reported["deep"])[:100]
            if fine
            else f"native {reported['native']!s:.300}; deep {reported['deep']!s:.300}"
        )
        print(f"{name}: {'equal' if fine else 'DIFFERENT'} ({time.monotonic() - began:.0f} s): {shown}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
