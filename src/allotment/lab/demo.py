"""The training job that `allotment demo` runs: a small one, with every array in an allocator.

A network of three layers learns a function, in batches of changing size. Two streams work at the same time, as on a
GPU: one makes the next batch, the other computes forward, backward and update on the previous one. Arrays are views of
raw addresses, so only the allocator's own rules keep one stream from overwriting what the other still reads: a wrong
rule shows as a loss that does not fall.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._devices.streams import Stream
from allotment.errors import UnsupportedError

Array = NDArray[np.float32]

WIDTHS = (16, 256, 256, 1)
LEARNING_RATE = 0.05


@dataclass
class Tensor:
    """A buffer and its array view. Dropping it frees the buffer, possibly while its work is still queued."""

    buffer: Buffer
    array: Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the job did, in figures."""

    steps: int
    seconds: float
    first_loss: float
    last_loss: float
    live_bytes: list[int]
    reserved_bytes: list[int]
    stats: dict[str, int]
    segments: list[dict[str, object]]

    @property
    def requested_bytes(self) -> int:
        return self.stats["requested_bytes.all.allocated"]

    @property
    def requests(self) -> int:
        return self.stats["allocation.all.allocated"]

    @property
    def from_cache(self) -> float:
        """The fraction of requests that were served without the device."""
        return 1 - self.stats["num_device_alloc"] / self.requests

    @property
    def waste_ratio(self) -> float:
        """Most memory reserved over most memory in use at once."""
        return self.stats["reserved_bytes.all.peak"] / self.stats["active_bytes.all.peak"]


class Trainer:
    """The network, its streams and its allocator."""

    def __init__(self, allocator: Allocator, seed: int = 7) -> None:
        require_memory(allocator)
        self.allocator = allocator
        self.random = np.random.default_rng(seed)
        self.compute = Stream(allocator)
        self.feed = Stream(allocator)
        self.weights = [self._weight(rows, columns) for rows, columns in pairwise(WIDTHS)]
        self.losses: list[float] = []
        self.live_bytes: list[int] = []
        self.reserved_bytes: list[int] = []

    def tensor(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        size = 4 * int(np.prod(shape))
        buffer = self.allocator.empty(size, stream)
        memory = memoryview((ctypes.c_char * size).from_address(buffer.address))
        return Tensor(buffer, np.frombuffer(memory, np.float32).reshape(shape))

    def _weight(self, rows: int, columns: int) -> Tensor:
        weight = self.tensor((rows, columns), self.compute)
        weight.array[:] = self.random.normal(0, (2 / rows) ** 0.5, (rows, columns))
        return weight

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        """Make the next batch on the feeding stream; the computing stream waits for it, and is recorded as a user."""
        inputs, targets = self.tensor((count, WIDTHS[0]), self.feed), self.tensor((count, 1), self.feed)
        values = self.random.normal(0, 1, (count, WIDTHS[0])).astype(np.float32)
        self.feed.submit(_make_batch, values, inputs.array, targets.array)
        self.compute.wait(self.feed.record())
        for tensor in (inputs, targets):
            self.allocator.record_stream(tensor.buffer, self.compute)
        return inputs, targets

    def step(self, count: int) -> None:
        """One batch: forward, backward, update, all queued on the computing stream."""
        inputs, targets = self.batch(count)
        run: Callable[..., None] = self.compute.submit
        activations = [inputs]
        for layer, weight in enumerate(self.weights):
            result = self.tensor((count, WIDTHS[layer + 1]), self.compute)
            run(_forward, activations[-1].array, weight.array, result.array, layer + 1 < len(self.weights))
            activations.append(result)
        gradient = self.tensor((count, 1), self.compute)
        run(_loss, activations[-1].array, targets.array, gradient.array, self.losses)
        for layer in reversed(range(len(self.weights))):
            weight = self.weights[layer]
            weight_gradient = self.tensor(weight.array.shape, self.compute)
            run(np.matmul, activations[layer].array.T, gradient.array, weight_gradient.array)
            if layer > 0:
                before = self.tensor((count, WIDTHS[layer]), self.compute)
                run(_backward, gradient.array, weight.array, activations[layer].array, before.array)
                gradient = before
            run(_update, weight.array, weight_gradient.array)
        self._sample()

    def _sample(self) -> None:
        stats = self.allocator.inspection.nested_stats()
        self.live_bytes.append(stats["active_bytes"]["all"]["current"])
        self.reserved_bytes.append(stats["reserved_bytes"]["all"]["current"])


def require_memory(allocator: Allocator) -> None:
    """Check that this process can read the device's memory, since arrays are made of bare addresses."""
    try:
        memoryview(allocator.empty(1))
    except BufferError:
        raise UnsupportedError(
            f"the demo needs memory that this process can read, which {allocator.device.name} does not have; run it"
            " with --device host"
        ) from None


def _make_batch(values: Array, inputs: Array, targets: Array) -> None:
    inputs[:] = values
    targets[:, 0] = np.sin(values[:, 0]) + 0.5 * values[:, 1] * values[:, 2]


def _forward(inputs: Array, weight: Array, result: Array, rectify: bool) -> None:
    np.matmul(inputs, weight, out=result)
    if rectify:
        np.maximum(result, 0, out=result)


def _loss(results: Array, targets: Array, gradient: Array, losses: list[float]) -> None:
    np.subtract(results, targets, out=gradient)
    losses.append(float(np.mean(gradient * gradient)))
    gradient *= 2 / len(results)


def _backward(gradient: Array, weight: Array, activations: Array, before: Array) -> None:
    np.matmul(gradient, weight.T, out=before)
    before *= activations > 0


def _update(weight: Array, gradient: Array) -> None:
    weight -= LEARNING_RATE * gradient


def train(allocator: Allocator, steps: int = 200, on_step: Callable[[int], None] | None = None) -> Outcome:
    """Run the job to its end."""
    trainer = Trainer(allocator)
    sizes = trainer.random.integers(64, 2048, steps)
    start = time.perf_counter()
    for number, count in enumerate(sizes):
        trainer.step(int(count))
        if number % 8 == 7:
            trainer.compute.synchronize()  # like a job that looks at its loss now and then
        if on_step is not None:
            on_step(number + 1)
    trainer.compute.synchronize()
    seconds = time.perf_counter() - start
    tenth = max(1, steps // 10)
    return Outcome(
        steps=steps,
        seconds=seconds,
        first_loss=float(np.mean(trainer.losses[:tenth])),
        last_loss=float(np.mean(trainer.losses[-tenth:])),
        live_bytes=trainer.live_bytes,
        reserved_bytes=trainer.reserved_bytes,
        stats=allocator.stats(),
        segments=allocator.history.segments(),
    )
