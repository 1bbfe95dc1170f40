"""PyTorch programs that need too much memory for a known reason: `explain` must name that reason first.

    python benchmarks/gpu/known_causes.py --out FOLDER [PROGRAM ...]             records on a GPU, explains
    python benchmarks/gpu/known_causes.py --out FOLDER --recorded [PROGRAM ...]  explains earlier recordings Each
    program runs in a separate process under PyTorch's own allocator, with its history and all stacks recorded in
FOLDER/PROGRAM.pickle.gz; results are in FOLDER/results.md and .json. Recording needs no Allotment, explaining neither
PyTorch nor a GPU. Exits with 1 if the first finding of `explain` about a program does not name its cause.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorded_programs import keep_snapshot, main, start_recording

MIB = 1 << 20


def _model(width: int = 1024, depth: int = 4) -> Any:
    import torch

    layers: list[Any] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).cuda()


def _train(step: Callable[[Any, Any, int], Any], model: Any, steps: int = 12, batch: int = 1024) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(steps):
        optimizer.zero_grad(set_to_none=True)
        data = torch.randn(batch, 1024, device="cuda")
        loss = step(model, data, number)
        loss.backward()
        optimizer.step()


def leak_of_losses() -> None:
    """Validation losses are kept in a list with their graphs."""
    losses = []

    def step(model: Any, data: Any, number: int) -> Any:
        losses.append(model(data).square().mean())
        return model(data).mean()

    _train(step, _model())


def leak_by_hook() -> None:
    """A forward hook copies each output of a layer into a list."""
    import torch

    model, kept = _model(), []

    def keep_output(module: Any, inputs: Any, output: Any) -> None:
        kept.append(output.detach().clone())

    model[2].register_forward_hook(keep_output)
    _train(lambda model, data, number: model(data).mean(), model)
    assert isinstance(kept[0], torch.Tensor)


def kept_by_closure() -> None:
    """A function made in each step keeps the outputs of all layers until the next step replaces it."""
    report: list[Callable[[], float]] = [lambda: 0.0]

    def step(model: Any, data: Any, number: int) -> Any:
        outputs = []
        for layer in model:
            data = layer(data)
            outputs.append(data)
        loss = data.square().mean()
        report[0] = lambda: float(outputs[-1].max())
        return loss

    _train(step, _model(), batch=8192)


def temporary_at_peak() -> None:
    """A short-lived copy of a large tensor makes the peak."""
    import torch

    def step(model: Any, data: Any, number: int) -> Any:
        output = model(data)
        with torch.no_grad():
            distances = torch.cdist(output.repeat(4, 1), output.repeat(4, 1)).double().max()
        return output.mean() + 0 * distances.float()

    _train(step, _model(), batch=2048)


def varying_sizes() -> None:
    """Batches of other lengths in each step leave free memory in pieces."""
    import random

    import torch

    choose = random.Random(3)
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    kept: list[Any] = []
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        data = torch.randn(choose.randrange(300, 6000), 1024, device="cuda")
        model(data).mean().backward()
        optimizer.step()
        kept = [*kept[-6:], data.mean(0).repeat(choose.randrange(500, 1500))]


def record_stream_delay() -> None:
    """Batches are copied on a separate stream, and their frees wait for the computing stream."""
    import torch

    model = _model()
    copying = torch.cuda.Stream()
    source = torch.randn(16 * MIB // 4, pin_memory=True)
    weight = torch.randn(4096, 4096, device="cuda")
    for _ in range(60):
        with torch.cuda.stream(copying):
            batch = source.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copying)
        for _ in range(8):
            weight @ weight
        model(batch.view(-1, 1024)[:64])
        batch.record_stream(torch.cuda.current_stream())
        del batch


def graph_pools() -> None:
    """A graph is captured for each of several batch sizes, each with its own pool."""
    import torch

    model = _model()
    graphs = []
    with torch.no_grad():
        model(torch.randn(64, 1024, device="cuda"))  # cuBLAS starts outside of a capture
        for batch in (65536, 32768, 16384, 8192, 4096):
            data = torch.randn(batch, 1024, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = model(data)
            graphs.append((graph, data, output))
    for graph, _, _ in graphs:
        graph.replay()
    torch.cuda.synchronize()


def cached_workspace() -> None:
    """Products on many streams leave a workspace of cuBLAS for each of them."""
    import torch

    a = torch.randn(512, 512, device="cuda")
    for stream in [torch.cuda.Stream() for _ in range(16)]:
        with torch.cuda.stream(stream):
            for _ in range(3):
                a @ a
    torch.cuda.synchronize()


def two_models() -> None:
    """A copy of the model that is averaged into is as large as the model."""
    import copy

    import torch

    model = _model(1024, 24)
    average = copy.deepcopy(model)
    for _ in range(8):
        with torch.no_grad():
            data = torch.randn(64, 1024, device="cuda")
            (model(data) - average(data)).square().mean()


def too_large_batch() -> None:
    """One batch is several times as large as the others and does not fit."""
    import torch

    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(600 * MIB / total)

    def step(model: Any, data: Any, number: int) -> Any:
        if number == 9:
            data = torch.randn(16384, 1024, device="cuda")
        return model(data).square().mean()

    try:
        _train(step, _model())
    except torch.OutOfMemoryError:
        return
    raise SystemExit(f"the large batch was served, with {free} bytes free at the start")


PROGRAMS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "leak_of_losses": (leak_of_losses, ("grows by", "a step", "graph")),
    "leak_by_hook": (leak_by_hook, ("grows by", "a step", "hook", "keep_output")),
    "kept_by_closure": (kept_by_closure, ("previous step",)),
    "temporary_at_peak": (temporary_at_peak, ("short",)),
    "varying_sizes": (varying_sizes, ("pieces", "sizes")),
    "record_stream_delay": (record_stream_delay, ("record_stream",)),
    "graph_pools": (graph_pools, ("graph", "pools")),
    "cached_workspace": (cached_workspace, ("workspace",)),
    "two_models": (two_models, ("twice",)),
    "too_large_batch": (too_large_batch, ("batch",)),
}
"""By name: the program, and the words that the first finding about it must contain."""


def record(name: str, file: Path) -> None:
    start_recording()
    PROGRAMS[name][0]()
    keep_snapshot(file)


def tell(name: str, file: Path) -> dict[str, Any]:
    """Return the findings of `explain` about a recording, and whether the first names the cause."""
    from allotment.lab import explain

    program, words = PROGRAMS[name]
    found = explain(file)
    said = [each.text for each in found.advice]
    return {
        "ok": bool(said) and all(word in said[0].lower() for word in words),
        "cause": program.__doc__,
        "said": said,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "steps": None if found.steps is None else found.steps.count,
        "kinds": {each.kind: each.bytes for each in found.peak.kinds},
        "matches_recording": found.matches_recording,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    named = sum(row["ok"] for row in rows)
    lines = [f"`explain` names the cause of {named} of {len(rows)} programs first.", ""]
    lines += ["| Program | Its cause | Named first | Peak, MiB | What `explain` says first |", "|---|---|---|---|---|"]
    for row in rows:
        first = row["said"][0] if row["said"] else "nothing"
        peak = f"{row['peak_reserved_bytes'] / MIB:,.0f}"
        lines.append(f"| {row['program']} | {row['cause']} | {'yes' if row['ok'] else 'NO'} | {peak} | {first} |")
    return [*lines, ""]


if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, PROGRAMS, record, tell, table))
