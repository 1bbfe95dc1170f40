"""Uses most features through PyTorch with Allotment as its allocator, for a tool that checks each access.

    compute-sanitizer --tool memcheck --report-api-errors no --show-backtrace no python tests/gpu/torch_smoke.py

The tool would report the allocation that is refused on purpose; and for its backtraces it keeps Python's frames, and
with them tensors without other references. The first argument is the settings string, the second one the mode.

Tensors on several streams, freed while they are read elsewhere; a training step, eager and captured; a pool; a refused
allocation; everything freed. Exits with 1 if a value is wrong.
"""

from __future__ import annotations

import gc
import random
import sys
import time

from allotment.torch._install import install

install(sys.argv[2] if len(sys.argv) > 2 else "hooks", settings=sys.argv[1] if len(sys.argv) > 1 else "")

import torch  # noqa: E402

from allotment.torch import memory  # noqa: E402
from allotment.torch._replacements import allocator_of  # noqa: E402

MIB = 1 << 20
SIZES = (512, 5_000, 100_000, 1_500_000, 3 * MIB, 11 * MIB, 21 * MIB)


def expect(holds: object, what: str) -> None:
    if not holds:
        sys.exit(f"wrong: {what}")


def random_tensors() -> None:
    choose = random.Random(1)
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live: list[tuple[torch.Tensor, int]] = []
    for step in range(150):
        if live and choose.random() < 0.45:
            tensor, value = live.pop(choose.randrange(len(live)))
            torch.cuda.synchronize()
            expect((tensor == value).all(), "what a tensor holds")
            reader = choose.choice(streams)
            with torch.cuda.stream(reader):
                tensor.add_(1)
            tensor.record_stream(reader)
        else:
            with torch.cuda.stream(choose.choice(streams)):
                size = choose.choice(SIZES)
                live.append((torch.full((size,), step % 200, dtype=torch.uint8, device="cuda"), step % 200))
    torch.cuda.synchronize()


def training(captured: bool) -> float:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).double().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64, dtype=torch.float64, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    if not captured:
        return [step() for _ in range(5)][-1].item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(5):
        graph.replay()
    return loss.item()


def pool() -> None:
    own = memory.MemPool()
    with memory.use_mem_pool(own):
        tensor = torch.full((4 * MIB,), 3, dtype=torch.uint8, device="cuda")
    expect((tensor == 3).all(), "a tensor of a pool")


def refusal() -> None:
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        expect(str(error).startswith("CUDA out of memory"), "the text of a refusal")
    else:
        sys.exit("wrong: 32 TiB were handed out")


def main() -> None:
    random_tensors()
    eager, captured = training(captured=False), training(captured=True)
    expect(abs(eager - captured) < 1e-9, f"a captured loss, {captured} instead of {eager}")
    pool()
    refusal()
    for _ in range(100):  # autograd's threads drop their last step some time later
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        if memory.memory_allocated() == 0:
            break
        time.sleep(0.05)
    torch.cuda.empty_cache()
    allocator_of(0).inspection.check_invariants()
    left = [
        block["size"]
        for segment in allocator_of(0).history.segments()
        for block in segment["blocks"]
        if block["state"] != "inactive"
    ]
    expect(not left, f"blocks of {left} bytes are still there")
    expect(memory.memory_reserved() == 0, f"{memory.memory_reserved()} bytes were not given back")
    print("all as it should be")


if __name__ == "__main__":
    main()
