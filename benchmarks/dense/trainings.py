"""Request streams of large trainings on one of many GPUs, computed from shapes, as snapshots that can be replayed.

    python benchmarks/dense/trainings.py --out FOLDER [--seeds 0 1] [--only NAME...] [--scale 0.5]

Llama-like models of 7 and 13 billion weights, trained as in papers on fragmentation: weights divided over
16 GPUs and gathered layer by layer (`zero3`), with recomputation (`r`), with activations and optimizer states on the
host (`o`), with adapters (`l`), and as the first of four pipeline stages, plain and interleaved.
Seed 0 takes sequences of one length, every other seed draws a length for each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from programs import COMMUNICATION, COPY, MIB, Layer, Program, block_of, loss_of, weights_of, write

VOCABULARY = 32000
RANKS = 16
MODELS = {"7b": (4096, 32, 32, 11008), "13b": (5120, 40, 40, 13824)}
"""Width, layers, heads, inner width."""


def length_of(p: Program, seed: int, most: int) -> int:
    return most if seed == 0 else 8 * p.draw.randrange(most // 32, most // 8 + 1)


class Gathered:
    """Weights of layers that are gathered on the communication stream, one layer ahead, and freed after use."""

    def __init__(self, p: Program, sizes: list[list[int]]) -> None:
        self.p, self.sizes = p, sizes
        self.here: dict[int, list[int]] = {}

    def fetch(self, layer: int) -> None:
        if 0 <= layer < len(self.sizes) and layer not in self.here:
            self.here[layer] = self.p.alloc_all(self.sizes[layer], stream=COMMUNICATION)

    def use(self, layer: int, following: int) -> None:
        self.fetch(layer)
        self.fetch(following)

    def drop(self, layer: int) -> None:
        for block in self.here.pop(layer):
            self.p.free_after(block, 12)


def zero3(model: str, how: str, seed: int, scale: float) -> Program:
    p = Program(seed)
    hidden, count, heads, inner = MODELS[model]
    recomputes, offloads, adapts = "r" in how, "o" in how, "l" in how
    sequences = {"7b": 8, "13b": 6}[model] if recomputes else 1

    def shapes(tokens: int) -> Layer:
        return block_of(tokens, hidden, heads, heads, inner)

    weights = weights_of([shapes(1)])
    layers = [weights] * count
    p.alloc_all(-(-size // RANKS) for _ in layers for size in weights)
    p.alloc_all([2 * hidden * VOCABULARY // RANKS] * 2)
    if not offloads and not adapts:  # four bytes each for the weights and two moments
        p.alloc_all([2 * -(-size // RANKS) for _ in layers for size in weights] * 3)
    p.alloc_all((32 * MIB, 256 * MIB))  # a workspace, and the bucket in which gradients are reduced
    adapters = [hidden * 64 * 2] * (8 * count) if adapts else []
    p.alloc_all(adapters)
    states: list[int] = []
    gathered = Gathered(p, layers)
    for _ in range(max(2, int(12 * scale))):
        tokens = sequences * length_of(p, seed, 2048)
        layer, head = shapes(tokens), loss_of(tokens, hidden, VOCABULARY)
        ids = p.alloc_all((tokens * 8, tokens * 8))
        size = tokens * hidden * 2
        inputs, saved = [p.alloc(size)], []
        for index in range(count):
            gathered.use(index, index + 1)
            outputs = p.forward(layer, keep=not recomputes)
            saved.append(outputs)
            gathered.drop(index)
            if recomputes:
                if offloads:
                    p.free_after(inputs[-1], 30)
                inputs.append(outputs[-1])
        grads: list[int] = []
        grad = p.backward(head, p.forward(head), p.alloc(512), grads)
        p.free(*grads)
        if recomputes:
            p.free(inputs.pop())
        ahead: deque[int] = deque()
        for index in reversed(range(count)):
            gathered.use(index, index - 1)
            if offloads:
                while len(ahead) < min(2, index + 1):
                    ahead.append(p.alloc(size, stream=COPY))
            kept = p.forward(layer) if recomputes else saved[index]
            shards: list[int] = []
            grad = p.backward(layer, kept, grad, shards)
            if adapts:
                p.free(*shards)
                grads_here = p.alloc_all(adapters[:8])
                p.free(*grads_here)
            else:
                for block in shards:
                    p.free_after(block, 20)
            gathered.drop(index)
            if offloads:
                p.free_after(ahead.popleft(), 10)
            elif recomputes:
                p.free(inputs.pop())
        p.free(grad, *ids)
        if not recomputes:
            p.free(inputs.pop())
        if adapts:
            p.adam(adapters, states)
        elif not offloads:
            p.free(*p.alloc_all(2 * -(-size // RANKS) for _ in range(4) for size in weights))
    return p


def pipeline(model: str, chunks: int, recomputes: bool, seed: int, scale: float) -> Program:
    """The first of four stages, a forward and a backward pass in turns; `chunks` parts of the model on each."""
    p = Program(seed)
    hidden, count, heads, inner = MODELS[model]
    stages, micro = 4, 12
    here = count // stages // chunks

    def shapes(tokens: int) -> Layer:
        return block_of(tokens, hidden // 4, heads // 4, heads // 4, inner // 4)  # each layer is divided over four GPUs

    weights = weights_of([shapes(1)] * (here * chunks))
    p.alloc_all(weights)
    p.alloc(2 * hidden * VOCABULARY // 4)
    p.alloc(2 * sum(weights))  # gradients of four bytes, contiguous
    p.alloc_all([2 * size for size in weights] * 3)
    p.alloc(32 * MIB)
    for _ in range(max(2, int(10 * scale))):
        flight: list[deque[tuple[Layer, list[list[int]]]]] = [deque() for _ in range(chunks)]
        lengths = [2 * length_of(p, seed, 4096) for _ in range(micro)]

        def go_forward(part: int, number: int, lengths: list[int] = lengths, flight: list = flight) -> None:  # type: ignore[type-arg]
            layer = shapes(lengths[number])
            received = p.alloc(lengths[number] * hidden * 2, stream=COMMUNICATION)
            saved = [[received]]
            for _ in range(here):
                outputs = p.forward(layer, keep=not recomputes)
                saved.append([*outputs, p.alloc(lengths[number] * hidden * 2)])
            flight[part].append((layer, saved))

        def go_back(part: int, flight: list = flight) -> None:  # type: ignore[type-arg]
            layer, saved = flight[part].popleft()
            grad = p.alloc(p.sizes[saved[0][0]], stream=COMMUNICATION)
            for kept in reversed(saved[1:]):
                again = p.forward(layer) if recomputes else kept[:-1]
                grad = p.backward(layer, again, grad, grads := [])
                p.free(*grads)
                p.free(*(kept if recomputes else kept[-1:]))
            p.free_after(grad, 15)
            p.free_after(saved[0][0], 15)

        warm = stages if chunks == 1 else stages + (chunks - 1)
        for number in range(micro):
            for part in range(chunks):
                if number >= warm:
                    go_back(chunks - 1 - part)
                go_forward(part, number)
        for part in reversed(range(chunks)):
            while flight[part]:
                go_back(part)
        p.free(*p.alloc_all(2 * size for size in weights[:40]))
    return p


def trainings() -> dict[str, Callable[[int, float], Program]]:
    made: dict[str, Callable[[int, float], Program]] = {}
    for model in MODELS:
        for how in ("n", "r", "ro", "lr", "lro"):
            made[f"{model}_zero3_{how}"] = partial(zero3, model, how)
        made[f"{model}_pipeline"] = partial(pipeline, model, 1, False)
        made[f"{model}_virtual_r"] = partial(pipeline, model, 2, True)
    return made


if __name__ == "__main__":
    write(trainings(), "Request streams of large trainings, computed from shapes.")
