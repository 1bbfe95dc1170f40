"""Request streams of programs, computed from the shapes of their tensors, as snapshots that `allotment replay` reads.

    python benchmarks/dense/programs.py --out FOLDER [--seeds 1 2 3] [--only NAME...] [--scale 0.3]

Eight kinds of programs: `llama_ckpt` trains with checkpointing on varying lengths, `vit_amp` with autocast on varying
batches, `whisper` generates with growing caches, `mistral_serve` serves requests that come and go, `gpt2_lora` trains
adapters, `compiled_graphs` captures graphs into a private pool, `gnn_prefetch` copies on a separate stream, and
`resnet_ddp` reduces gradients in buckets. A seed draws lengths, batches and graphs; `--scale` multiplies the steps.

A forward pass allocates the outputs of its operations and keeps those that the backward pass needs; the backward pass
goes through them in reverse, allocates a gradient for each and frees what it no longer needs. No tensor library is
involved.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ops_to_snapshot import ALLOCATE, ASK, DONE, EMPTY_CACHE, Lane, snapshot_of

MIB = 1 << 20
COMPUTE, COPY, COMMUNICATION = 0, 7, 9
GRAPHS = (1, 0)


class Operation(NamedTuple):
    """One operation of a layer: the bytes of its output, of its weight, and whether the backward pass needs it."""

    output: int
    weight: int = 0
    kept: bool = True


Layer = list[Operation]


class Program:
    """Requests in order. Blocks are numbers; a free that waits for other streams completes some requests later."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.lanes: dict[Lane, int] = {}
        self.sizes: list[int] = []
        self._later: deque[tuple[int, int]] = deque()

    def alloc(self, size: int, stream: int = COMPUTE, pool: tuple[int, int] = (0, 0)) -> int:
        while self._later and self._later[0][0] <= len(self.rows):
            self._row(DONE, self._later.popleft()[1])
        self.sizes.append(max(1, size))
        self._row(ALLOCATE, len(self.sizes) - 1, self.lanes.setdefault((stream, pool), len(self.lanes)))
        return len(self.sizes) - 1

    def alloc_all(self, sizes: Iterable[int], **where: Any) -> list[int]:
        return [self.alloc(size, **where) for size in sizes]

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self._row(DONE, block)

    def free_after(self, block: int, rows: int) -> None:
        """Free a block that another stream still uses for `rows` more entries."""
        self._row(ASK, block)
        self._later.append((len(self.rows) + rows, block))

    def empty_cache(self) -> None:
        self._row(EMPTY_CACHE, 0)

    def snapshot(self) -> dict[str, Any]:
        for _, block in self._later:
            self._row(DONE, block)
        self._later.clear()
        lanes = {number: lane for lane, number in self.lanes.items()}
        return snapshot_of(np.array(self.rows, np.int64), lanes)

    def _row(self, kind: int, block: int, lane: int = 0) -> None:
        self.rows.append((kind, block, self.sizes[block] if kind == ALLOCATE else 0, lane, len(self.rows)))

    # --- training ------------------------------------------------------------------------------------------------

    def forward(self, layer: Layer, keep: bool = True, **where: Any) -> list[int]:
        """Allocate the outputs of a layer. Returns those kept, and always the last one."""
        saved: list[int] = []
        before: int | None = None
        for operation in layer:
            block = self.alloc(operation.output, **where)
            if before is not None:
                self.free(before)
            before = None if operation.kept and keep else block
            if before is None:
                saved.append(block)
        return saved if before is None else [*saved, before]

    def backward(self, layer: Layer, saved: list[int], grad: int, grads: list[int], **where: Any) -> int:
        """Free what `forward` saved, in reverse. Returns the gradient of the layer's input."""
        left = list(saved)
        for index in reversed(range(len(layer))):
            operation = layer[index]
            following = self.alloc(layer[index - 1].output if index else operation.output, **where)
            if operation.weight:
                grads.append(self.alloc(operation.weight, **where))
            self.free(grad)
            grad = following
            if left and (operation.kept or index == len(layer) - 1):
                self.free(left.pop())
        self.free(*left)
        return grad

    def adam(self, weights: list[int], states: list[int], at_once: int = 40) -> None:
        """A step of Adam by lists of tensors: states at the first step, temporaries as large as the weights."""
        if not states:
            for size in weights:
                states += self.alloc_all((size, size))
        for first in range(0, len(weights), at_once):
            self.free(*self.alloc_all(weights[first : first + at_once]))


def weights_of(layers: Iterable[Layer]) -> list[int]:
    return [operation.weight for layer in layers for operation in layer if operation.weight]


def attention(tokens: int, hidden: int, heads: int, keys: int, size: int = 2) -> Layer:
    n = tokens * hidden * size
    kv = 2 * n * keys // heads
    square = hidden * hidden * size
    return [
        Operation(n, hidden * size), Operation(tokens * 4), Operation(n, square),
        Operation(kv, 2 * square * keys // heads), Operation(n + kv, kept=False), Operation(n),
        Operation(tokens * heads * 4), Operation(n, square, kept=False), Operation(n),
    ]  # fmt: skip


def perceptron(tokens: int, hidden: int, inner: int, gated: bool, size: int = 2) -> Layer:
    n, wide, weight = tokens * hidden * size, tokens * inner * size, hidden * inner * size
    up = [Operation(wide, weight)] * (2 if gated else 1) + [Operation(wide)] * (2 if gated else 1)
    return [
        Operation(n, hidden * size), Operation(tokens * 4), *up, Operation(n, weight, kept=False), Operation(n),
    ]  # fmt: skip


def block_of(tokens: int, hidden: int, heads: int, keys: int, inner: int, gated: bool = True, size: int = 2) -> Layer:
    return attention(tokens, hidden, heads, keys, size) + perceptron(tokens, hidden, inner, gated, size)


def loss_of(tokens: int, hidden: int, vocabulary: int) -> Layer:
    logits = tokens * vocabulary
    return [Operation(tokens * hidden * 2, hidden * 2), Operation(logits * 2, hidden * vocabulary * 2),
            Operation(logits * 4), Operation(logits * 4), Operation(512)]  # fmt: skip


def llama_ckpt(seed: int, scale: float) -> Program:
    """16 layers of 1024, each recomputed in the backward pass; 2 sequences of 200 to 2,000 tokens."""
    p = Program(seed)
    hidden, count, vocabulary = 1024, 16, 32000

    def shapes(tokens: int) -> Layer:
        return block_of(tokens, hidden, 16, 4, 2816)

    weights = [hidden * vocabulary * 2, *weights_of([shapes(1)] * count), *weights_of([loss_of(1, hidden, vocabulary)])]
    p.alloc_all(weights)
    p.alloc(32 * MIB)
    states: list[int] = []
    for _ in range(int(60 * scale)):
        tokens = 2 * p.draw.randrange(200, 2000)
        layer, head = shapes(tokens), loss_of(tokens, hidden, vocabulary)
        ids = p.alloc_all((tokens * 8, tokens * 8))
        inputs = [p.alloc(tokens * hidden * 2)]
        for _ in range(count):
            inputs += p.forward(layer, keep=False)
        grads: list[int] = []
        grad = p.backward(head, p.forward(head), p.alloc(512), grads)
        p.free(inputs.pop())
        for _ in range(count):
            saved = p.forward(layer)
            grad = p.backward(layer, saved, grad, grads)
            p.free(inputs.pop())
        grads.append(p.alloc(weights[0]))
        p.free(grad)
        p.adam(weights, states)
        p.free(*grads, *ids)
    return p


def vit_amp(seed: int, scale: float) -> Program:
    """ViT-B: weights of four bytes whose halves are cast in each step; 16 to 96 images."""
    p = Program(seed)
    hidden, count = 768, 12

    def shapes(images: int) -> Layer:
        return block_of(images * 197, hidden, 12, 12, 3072, gated=False)

    layers = [shapes(1)] * count
    weights = [2 * size for size in weights_of(layers)]
    p.alloc_all(weights)
    p.alloc(32 * MIB)
    states: list[int] = []
    for _ in range(int(80 * scale)):
        images = p.draw.randrange(16, 97)
        layer = shapes(images)
        batch = p.alloc(images * 3 * 224 * 224 * 4)
        half = p.alloc(images * 3 * 224 * 224 * 2)
        casts, saved = [], []
        for _ in range(count):
            casts += p.alloc_all(size // 2 for size in weights_of([layer]))
            saved.append(p.forward(layer))
        p.free(*casts)
        grads: list[int] = []
        grad = p.alloc(images * 197 * hidden * 2)
        for kept in reversed(saved):
            grad = p.backward(layer, kept, grad, halves := [])
            for block in halves:
                grads.append(p.alloc(2 * p.sizes[block]))
                p.free(block)
        p.free(grad, half, batch)
        p.adam(weights, states)
        p.free(*grads)
    return p


def decode(p: Program, caches: list[int], count: int, layer: Layer, token_bytes: int, length: int, logits: int) -> None:
    """One token: each layer's cache is copied into one that is a token longer."""
    for index in range(count):
        outputs = p.forward(layer, keep=False)
        for side in (2 * index, 2 * index + 1):
            longer = p.alloc(token_bytes * (length + 1))
            p.free(caches[side])
            caches[side] = longer
        p.free(*outputs)
    p.free(*p.alloc_all((logits, 2 * logits)))


def whisper(seed: int, scale: float) -> Program:
    """An encoder and a decoder of six layers of 512; batches of 4 to 16, 60 to 200 tokens each, in half precision."""
    p = Program(seed)
    hidden, count, frames = 512, 6, 1500
    weights = [*weights_of([block_of(1, hidden, 8, 8, 2048, gated=False)] * (3 * count)), hidden * 51865 * 2]
    p.alloc_all(weights)
    p.alloc(32 * MIB)
    for _ in range(int(25 * scale)):
        batch = p.draw.randrange(4, 17)
        features = p.alloc(batch * 80 * 3000 * 4)
        half = p.alloc(batch * 80 * 3000 * 2)
        states = p.alloc(batch * 3000 * hidden * 2)
        encoder = block_of(batch * frames, hidden, 8, 8, 2048, gated=False)
        for _ in range(count):
            following = p.forward(encoder, keep=False)
            p.free(states)
            states = following[0]
        cross = p.alloc_all([batch * frames * hidden * 2] * (2 * count))
        caches = p.alloc_all([batch * hidden * 2] * (2 * count))
        layer = [*block_of(batch, hidden, 8, 8, 2048, gated=False), Operation(batch * 8 * frames * 2, kept=False)]
        for length in range(1, p.draw.randrange(60, 200)):
            decode(p, caches, count, layer, batch * hidden * 2, length, batch * 51865 * 2)
        p.free(*caches, *cross, states, half, features)
    return p


def mistral_serve(seed: int, scale: float) -> Program:
    """16 layers of 2048 with grouped keys; groups of 1 to 24 requests of 50 to 1,500 tokens, two groups in turns."""
    p = Program(seed)
    hidden, count, vocabulary, keys = 2048, 16, 32000, 8

    def shapes(tokens: int) -> Layer:
        return block_of(tokens, hidden, 32, keys, 5632)

    p.alloc_all([hidden * vocabulary * 2] * 2 + weights_of([shapes(1)] * count))
    p.alloc(32 * MIB)
    groups: list[tuple[int, int, int, list[int]]] = []
    for _ in range(int(30 * scale)):
        while len(groups) < 2:
            batch, length = p.draw.randrange(1, 25), p.draw.randrange(50, 1500)
            token = batch * hidden * 2 * keys // 32
            states = p.alloc(batch * length * hidden * 2)
            caches = []
            for _ in range(count):
                following = p.forward(shapes(batch * length), keep=False)
                caches += p.alloc_all([token * length] * 2)
                p.free(states)
                states = following[0]
            p.free(states)
            groups.append((batch, length, length + p.draw.randrange(40, 300), caches))
        batch, length, end, caches = groups.pop(0)
        until = min(end, length + p.draw.randrange(20, 80))
        for at in range(length, until):
            decode(p, caches, count, shapes(batch), batch * hidden * 2 * keys // 32, at, batch * vocabulary * 2)
        if until < end:
            groups.append((batch, until, end, caches))
        else:
            p.free(*caches)
    return p


def gpt2_lora(seed: int, scale: float) -> Program:
    """GPT-2 medium, frozen, with adapters of rank 16; 8 sequences of 60 to 1,000 tokens."""
    p = Program(seed)
    hidden, count, rank, vocabulary = 1024, 24, 16, 50257

    def shapes(tokens: int) -> Layer:
        frozen = [one._replace(weight=0) for one in block_of(tokens, hidden, 16, 16, 4096, gated=False)]
        adapter = [
            Operation(tokens * rank * 2, hidden * rank * 4),
            Operation(tokens * hidden * 2, hidden * rank * 4, False),
        ]
        return frozen[:4] + adapter + frozen[4:]

    p.alloc_all([hidden * vocabulary * 2, *weights_of([block_of(1, hidden, 16, 16, 4096, gated=False)] * count)])
    weights = weights_of([shapes(1)] * count)
    p.alloc_all(weights)
    p.alloc(32 * MIB)
    states: list[int] = []
    for _ in range(int(50 * scale)):
        tokens = 8 * p.draw.randrange(60, 1000)
        layer, head = shapes(tokens), loss_of(tokens, hidden, vocabulary)
        head = [one._replace(weight=0) for one in head]
        ids = p.alloc_all((tokens * 8, tokens * 8))
        saved = [p.forward(layer) for _ in range(count)]
        grads: list[int] = []
        grad = p.backward(head, p.forward(head), p.alloc(512), grads)
        for kept in reversed(saved):
            grad = p.backward(layer, kept, grad, grads)
        p.free(grad)
        p.adam(weights, states)
        p.free(*grads, *ids)
    return p


def compiled_graphs(seed: int, scale: float) -> Program:
    """A small model, compiled: graphs of several batches, each run once and then captured, in one private pool."""
    p = Program(seed)
    hidden, count = 256, 6

    def shapes(tokens: int) -> Layer:
        return block_of(tokens, hidden, 8, 8, 1024, gated=False, size=4)

    weights = weights_of([shapes(1)] * count)
    p.alloc_all(weights)
    p.alloc(32 * MIB)
    states: list[int] = []
    for tokens in p.draw.sample(range(64, 1024, 32), 4):
        layer = shapes(tokens)
        outputs: list[int] = []
        for _ in range(2):
            p.empty_cache()
            inputs = p.alloc(tokens * hidden * 4)
            saved = [p.forward(layer, pool=GRAPHS) for _ in range(count)]
            grads: list[int] = []
            grad = p.alloc(tokens * hidden * 4, pool=GRAPHS)
            for kept in reversed(saved):
                grad = p.backward(layer, kept, grad, grads, pool=GRAPHS)
            p.adam(weights, states)
            p.free(*grads, inputs, *outputs)
            outputs = [grad]
        for _ in range(int(30 * scale)):  # replays: only inputs and temporaries outside of the graph are requested
            batch = p.alloc_all((tokens * hidden * 4, tokens * 8))
            p.adam(weights, states)
            p.free(*batch)
    return p


def gnn_prefetch(seed: int, scale: float) -> Program:
    """Sampled neighbourhoods, copied two batches ahead on a separate stream; three layers of 256."""
    p = Program(seed)
    features, hidden = 128, 256
    weights = [features * hidden * 4, hidden * hidden * 4, hidden * 47 * 4] * 2
    p.alloc_all(weights)
    p.alloc(400 * MIB)  # part of the graph is on the device
    states: list[int] = []
    ahead: deque[tuple[list[int], list[int]]] = deque()
    for _ in range(int(120 * scale)):
        while len(ahead) < 3:
            nodes = [1024]
            for fan in (15, 10, 5):
                nodes.append(int(nodes[-1] * fan * p.draw.uniform(0.25, 0.75)))
            edges = [8 * 2 * int(count * 1.4) for count in nodes[1:]]
            ahead.append((nodes, p.alloc_all([nodes[-1] * features * 4, *edges, 8 * nodes[0]], stream=COPY)))
        nodes, batch = ahead.popleft()
        layers: list[Layer] = []
        width = features
        for source, target in zip(nodes[:0:-1], nodes[-2::-1], strict=True):
            layers.append([Operation(int(target * 3.1) * width * 4, kept=False), Operation(target * width * 4),
                           Operation(target * hidden * 4, width * hidden * 4), Operation(target * hidden * 4),
                           Operation(source // 8)])  # fmt: skip
            width = hidden
        saved = [p.forward(layer) for layer in layers]
        grads: list[int] = []
        grad = p.alloc(nodes[0] * hidden * 4)
        for layer, kept in zip(reversed(layers), reversed(saved), strict=True):
            grad = p.backward(layer, kept, grad, grads)
        p.free(grad)
        for block in batch:
            p.free_after(block, p.draw.randrange(5, 60))
        p.adam(weights, states)
        p.free(*grads)
    return p


def resnet_ddp(seed: int, scale: float) -> Program:
    """ResNet-50 on 32 to 64 images of changing sizes, gradients in buckets of 25 MiB that another stream reduces."""
    p = Program(seed)
    stages = [(64, 3, 4), (128, 4, 8), (256, 6, 16), (512, 3, 32)]

    def shapes(images: int, side: int) -> list[Layer]:
        layers: list[Layer] = []
        for width, blocks, stride in stages:
            area = images * (side // stride) ** 2 * 4
            for _ in range(blocks):
                layers.append([
                    Operation(area * width, 4 * width * width * 4), Operation(area * width), Operation(area * width),
                    Operation(area * width, 9 * width * width * 4), Operation(area * width), Operation(area * width),
                    Operation(area * 4 * width, 4 * width * width * 4), Operation(area * 4 * width),
                    Operation(area * 4 * width),
                ])  # fmt: skip
        return layers

    weights = [*weights_of(shapes(1, 224)), 2048 * 1000 * 4]
    p.alloc_all(weights)
    total = sum(weights)
    buckets = p.alloc_all([MIB, *([25 * MIB] * (total // (25 * MIB))), total % (25 * MIB)])
    states = p.alloc_all(weights)  # momentum
    for _ in range(int(40 * scale)):
        images, side = p.draw.randrange(32, 65), p.draw.choice((192, 224, 256))
        batch = p.alloc(images * 3 * side * side * 4, stream=COPY)
        layers = shapes(images, side)
        saved = []
        for layer in layers:
            workspace = p.alloc(int(layer[0].output * p.draw.choice((0.25, 1.0, 2.5))))
            saved.append(p.forward(layer))
            p.free(workspace)
        grad = p.alloc(layers[-1][-1].output)
        for layer, kept in zip(reversed(layers), reversed(saved), strict=True):
            workspace = p.alloc(int(layer[0].output * p.draw.choice((0.25, 1.0, 2.5))))
            grad = p.backward(layer, kept, grad, views := [])
            p.free(*views, workspace)
            if p.draw.random() < 0.2:
                p.free_after(p.alloc(p.draw.choice((4, 25)) * MIB, stream=COMMUNICATION), 20)
        p.free(grad)
        p.free_after(batch, 10)
        p.adam(weights, states)
    p.free(*buckets)
    return p


PROGRAMS: dict[str, Callable[[int, float], Program]] = {
    make.__name__: make
    for make in (llama_ckpt, vit_amp, whisper, mistral_serve, gpt2_lora, compiled_graphs, gnn_prefetch, resnet_ddp)
}


def write(programs: dict[str, Callable[[int, float], Program]], description: str) -> None:
    """Run the command line of a file that makes programs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=programs, default=list(programs))
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        for seed in arguments.seeds:
            target = arguments.out / f"{name}.{seed}.pickle.gz"
            with gzip.open(target, "wb", compresslevel=1) as out:
                pickle.dump(programs[name](seed, arguments.scale).snapshot(), out, protocol=4)
            print(target, flush=True)


if __name__ == "__main__":
    write(PROGRAMS, "Request streams of eight kinds of programs, computed from shapes.")
