"""Programs that need much memory for a known reason, as streams of requests with the stacks that PyTorch would record.

Each runs on an allocator of ours on a simulated device. The snapshot gets the stacks that these programs give to their
requests, in order.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._devices.streams import Stream
from allotment.errors import OutOfMemoryError

KIB, MIB = 1 << 10, 1 << 20
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
HOME = "/home/user/project"
Frame = tuple[str, str, int]
Stack = tuple[Frame, ...]

MODULE = f"{TORCH}/nn/modules/module.py"
CALLED: Stack = (("_call_impl", MODULE, 1790), ("_wrapped_call_impl", MODULE, 1779))
MAIN: Stack = (("main", f"{HOME}/train.py", 88), ("<module>", f"{HOME}/train.py", 95))
NO_STACK: Stack = ()


def own(line: int, name: str = "train", file: str = "train.py") -> Stack:
    """A line of the program, called from its main function."""
    return (name, f"{HOME}/{file}", line), *MAIN


def forward(line: int, calling: int = 52, *, file: str = "model.py") -> Stack:
    """A linear layer that the model's `forward` calls at a line; the training loop calls the model at another."""
    layer = (("forward", f"{TORCH}/nn/modules/linear.py", 125), *CALLED)
    return *layer, ("forward", f"{HOME}/{file}", line), *CALLED, *own(calling)


def loading(line: int, name: str = "build") -> Stack:
    """A module that is moved to the device at a line."""
    moving = (("convert", MODULE, 1370), ("_apply", MODULE, 965), ("_apply", MODULE, 934), ("cuda", MODULE, 1100))
    return *moving, *own(line, name)


def calling_backward(line: int) -> Stack:
    """The first gradient, which `backward()` itself allocates."""
    return (
        ("_make_grads", f"{TORCH}/autograd/__init__.py", 220),
        ("backward", f"{TORCH}/autograd/__init__.py", 350),
        ("backward", f"{TORCH}/_tensor.py", 630),
        *own(line),
    )


def optimizing(line: int, name: str) -> Stack:
    """Inside the optimizer's step."""
    inside = ((name, f"{TORCH}/optim/adamw.py", 180), ("step", f"{TORCH}/optim/adamw.py", 240))
    return *inside, ("wrapper", f"{TORCH}/optim/optimizer.py", 520), *own(line)


class Program:
    """Requests with stacks, recorded."""

    def __init__(self, capacity: str = "8GiB", settings: str = "", limit: str | None = None) -> None:
        self.allocator = Allocator(f"sim:{capacity}", settings=f"compat:2.11{settings}", limit=limit)
        self.allocator.record_history()
        self._stacks: list[Stack] = []
        self._of_address: dict[int, Stack] = {}

    def ask(self, size: int, stack: Stack, stream: Stream | None = None) -> int:
        """Allocate a block. Raises OutOfMemoryError."""
        self._stacks.append(stack)
        block = self.allocator.malloc(size) if stream is None else self.allocator.malloc(size, stream)
        self._of_address[int(block)] = stack
        return block

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.allocator.free(block)

    def forget_stacks(self) -> None:
        """As if no stacks had been recorded."""
        self._stacks = [NO_STACK] * len(self._stacks)
        self._of_address.clear()

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot in PyTorch's form, with the stacks."""
        found = self.allocator.snapshot()
        stacks = iter(self._stacks)
        known: dict[Stack, list[dict[str, Any]]] = {}

        def frames(stack: Stack) -> list[dict[str, Any]]:
            listed = [{"name": name, "filename": file, "line": line} for name, file, line in stack]
            return known.setdefault(stack, listed)

        for entry in found["device_traces"][0]:
            if entry["action"] in ("alloc", "oom"):
                entry["frames"] = frames(next(stacks))
        for segment in found["segments"]:
            for block in segment["blocks"]:
                block["frames"] = frames(self._of_address.get(block["address"], NO_STACK))
        return found

    def recorded(self) -> bytes:
        return pickle.dumps(self.snapshot())


@dataclass
class Training:
    """A training loop over a model of a few layers, on a program; each step gets the additional work."""

    program: Program
    layers: int = 4
    width: int = 4 * MIB
    """Bytes of a layer's parameters."""
    activation: int = 12 * MIB
    """Bytes that each layer keeps for the backward pass."""
    weights: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)

    def load(self, line: int = 20) -> None:
        self.weights += [self.program.ask(self.width, loading(line)) for _ in range(self.layers)]

    def forward(self, activation: int | None = None, calling: int = 52) -> list[int]:
        """Allocate what the layers keep, and then the loss."""
        kept = []
        for layer in range(self.layers):
            hidden = self.program.ask(activation or self.activation, forward(30 + layer, calling))
            short = self.program.ask((activation or self.activation) // 4, forward(30 + layer, calling))
            self.program.free(short)
            kept.append(hidden)
        kept.append(self.program.ask(4, own(calling + 2)))
        return kept

    def backward(self, kept: Sequence[int], line: int = 56) -> list[int]:
        """Allocate gradients, and free what the layers kept."""
        start = self.program.ask(4, calling_backward(line))
        gradients = []
        for hidden in reversed(kept):
            of_output = self.program.ask(2 * MIB, NO_STACK)
            if len(gradients) < self.layers:
                gradients.append(self.program.ask(self.width, NO_STACK))
            self.program.free(of_output, hidden)
        self.program.free(start)
        return gradients

    def optimize(self, gradients: Sequence[int], line: int = 57) -> None:
        """Make a step of the optimizer, which creates its state in the first one; frees the gradients."""
        if not self.states:
            self.states += [
                self.program.ask(self.width, optimizing(line, "_init_group")) for _ in range(2 * self.layers)
            ]
        for _ in range(self.layers):
            self.program.free(self.program.ask(self.width, optimizing(line, "_multi_tensor_adamw")))
        self.program.free(*gradients)

    def step(self, activation: int | None = None) -> None:
        data = self.program.ask(2 * MIB, own(50))
        kept = self.forward(activation)
        self.optimize(self.backward(kept))
        self.program.free(data)


def leak_of_losses(capacity: str = "8GiB", *, ends: bool = False) -> Program:
    """A list keeps the losses of a validation with their graphs, until memory runs out.

    `ends`: the program ends, and the list with it, before the history does.
    """
    program = Program(capacity)
    kept: list[int] = []
    training = Training(program)
    training.load()
    try:
        for _ in range(40):
            training.step()
            kept += training.forward(2 * MIB, calling=70)  # four times 2 MiB, and the loss at line 72
    except OutOfMemoryError:
        pass
    if ends:
        program.free(*kept)
    return program


def leak_by_hook() -> Program:
    """A forward hook keeps a copy of each output of a layer."""
    program = Program()
    training = Training(program)
    training.load()
    hook = (("keep_output", f"{HOME}/probes.py", 14), ("inner", MODULE, 1840), *CALLED, *forward(32)[2:])
    for _ in range(20):
        data = program.ask(2 * MIB, own(50))
        kept = training.forward()
        program.ask(3 * MIB, hook)
        training.optimize(training.backward(kept))
        program.free(data)
    return program


def kept_by_closure(is_late: bool = False) -> Program:
    """A closure in each step keeps its largest activation until the next step replaces it.

    `is_late`: it is replaced at the end of that step.
    """
    program = Program()
    training = Training(program)
    training.load()
    before = None
    for _ in range(12):
        data = program.ask(2 * MIB, own(50))
        kept = training.forward()
        large = program.ask(96 * MIB, forward(41))
        if before is not None and not is_late:
            program.free(before)
        training.optimize(training.backward(kept))
        program.free(data)
        if before is not None and is_late:
            program.free(before)
        before = large
    return program


def temporary_at_peak() -> Program:
    """A copy of the logits in another type exists for a moment, when most memory is in use."""
    program = Program()
    training = Training(program)
    training.load()
    for _ in range(10):
        data = program.ask(2 * MIB, own(50))
        kept = training.forward()
        program.free(program.ask(128 * MIB, own(61, "loss_of", "losses.py")))
        training.optimize(training.backward(kept))
        program.free(data)
    return program


def varying_sizes() -> Program:
    """Each step has sequences of other lengths; small results between them stay for a few steps."""
    program = Program()
    training = Training(program, activation=MIB)
    training.load()
    choose = random.Random(11)
    results: list[int] = []
    for _ in range(40):
        length = choose.randrange(11 * MIB, 60 * MIB, 512 * KIB)
        kept = []
        for layer in range(4):
            kept.append(program.ask(length, forward(30 + layer)))
            results.append(program.ask(choose.randrange(1 * MIB + 512, 3 * MIB, 4096), own(58, "summary", "report.py")))
        kept.append(program.ask(4, own(54)))
        training.optimize(training.backward(kept))
        while len(results) > 40:
            program.free(results.pop(0))
    return program


def record_stream_delay() -> Program:
    """Batches are copied on a separate stream; the computing stream is late, and their frees wait for it."""
    program = Program()
    copying, computing = Stream(program.allocator), Stream(program.allocator)
    training = Training(program)
    training.load()
    for _ in range(10):
        for _ in range(5):
            batch = program.ask(16 * MIB, own(33, "prefetch", "loader.py"), copying)
            program.allocator.device.launch(computing.handle)
            program.allocator.record_stream(batch, computing)
            program.free(batch)
        training.step()
        program.allocator.device.finish(computing.handle)
    return program


def graph_pools() -> Program:
    """A graph for each of five batch sizes, each captured into a pool of its own."""
    program = Program()
    training = Training(program)
    training.load()
    capturing = ("__enter__", f"{TORCH}/cuda/graphs.py", 190)
    pools = []
    for place in range(5):
        pool = program.allocator.pool()
        with pool:
            hidden = [program.ask((16 + 8 * place) * MIB, (*forward(30 + layer, 64), capturing)) for layer in range(4)]
            program.free(*hidden[:-1])
        pools.append(pool)
    program.pools = pools  # type: ignore[attr-defined]
    return program


def cached_workspace(streams: int = 12, *, is_named: bool = True) -> Program:
    """Products of matrices on many streams: cuBLAS keeps a workspace for each, which compiled frames name."""
    program = Program()
    training = Training(program, layers=2)
    training.load()
    names = (("at::cuda::getCUDABlasLtWorkspace()", "??", 0), ("at::cuda::blas::gemm", "??", 0))
    product = own(66)
    for _ in range(streams):
        stream = Stream(program.allocator)
        program.ask(8_519_680, (*names, *product) if is_named else product, stream)
        for _ in range(3):
            program.free(program.ask(512 * KIB, product, stream))
    return program


def two_models() -> Program:
    """A copy of the model, for averages, lies beside it."""
    program = Program()
    copying = (("__deepcopy__", f"{TORCH}/nn/parameter.py", 66), ("deepcopy", "/usr/lib/python3.12/copy.py", 143))
    sizes = [(6 + layer) * MIB for layer in range(12)]
    for size in sizes:
        program.ask(size, loading(20))
    for size in sizes:
        program.ask(size, (*copying, *own(24, "build")))
    for _ in range(8):
        for calling in (52, 53):
            for layer in range(4):
                program.free(program.ask(2 * MIB, forward(30 + layer, calling)))
    return program


def too_large_batch(times: float = 4.0) -> Program:
    """One batch of many is four times as large as the others and does not fit."""
    program = Program("400MiB")
    training = Training(program)
    training.load()
    try:
        for step in range(12):
            training.step(int(24 * times) * MIB if step == 9 else 24 * MIB)
    except OutOfMemoryError:
        pass
    return program


CAUSES: dict[str, tuple[Callable[[], Program], tuple[str, ...]]] = {
    "leak_of_losses": (leak_of_losses, ("grows by 8.0 MiB a step", "model.py:30", "graph", "train.py:72")),
    "leak_by_hook": (leak_by_hook, ("grows by 3.0 MiB a step", "hook", "probes.py:14 keep_output")),
    "kept_by_closure": (kept_by_closure, ("previous step", "96.0 MiB", "model.py:41")),
    "temporary_at_peak": (temporary_at_peak, ("short", "losses.py:61", "128.0 MiB")),
    "varying_sizes": (varying_sizes, ("pieces", "different sizes", "model.py")),
    "record_stream_delay": (record_stream_delay, ("record_stream", "80.0 MiB", "loader.py:33")),
    "graph_pools": (graph_pools, ("5 private pools", "graph")),
    "cached_workspace": (cached_workspace, ("12 workspaces",)),
    "two_models": (two_models, ("twice", "train.py:20", "train.py:24")),
    "too_large_batch": (too_large_batch, ("batch of step 10", "4.0 times")),
}
"""By name: the program, and words that the first finding about it must contain."""
