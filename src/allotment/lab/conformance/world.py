"""The state of a replayed run: an allocator on a scripted device, and the names used in the ops."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allotment._allocators.caching.allocator import Allocator
from allotment._core.records.history import get_user_metadata, set_user_metadata
from allotment._devices.simulated.device import SimulatedDevice
from allotment._devices.streams import Stream
from allotment._rules import Rules, rules_of
from allotment._settings import parse_leniently
from allotment.errors import FormatError
from allotment.lab.conformance.file import GroundTruth, Op
from allotment.lab.conformance.script import GoldenScript
from allotment.lab.conformance.trace import PoolId

Value = TypeVar("Value")


@dataclass(slots=True)
class Graph:
    """One captured graph, alive from its capture_begin to its graph_reset."""

    pool: PoolId
    stream: int
    captured: bool = False
    generator_state: list[int] = field(default_factory=list)
    """Two blocks of the random generator for this capture, under other rules."""


@dataclass(slots=True)
class World:
    """An allocator on a scripted device, and the objects that the names in the ops refer to."""

    allocator: Allocator
    device: SimulatedDevice
    script: GoldenScript
    streams: list[int]
    rules: Rules
    blocks: dict[int, int] = field(default_factory=dict)
    """Addresses by the id of their alloc. Ids stay known after their free, because a restore can revive them."""
    live: set[int] = field(default_factory=set)
    pools: dict[int, PoolId] = field(default_factory=dict)
    lending_pools: list[int] = field(default_factory=list)
    """In order of creation."""
    routed_pools: set[int] = field(default_factory=set)
    states: dict[int, Any] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)
    graph_ids: int = 0
    generator_state: list[int] = field(default_factory=list)
    """Two blocks that the framework's random generator holds while any graph is alive, under some rules."""
    trace_order_is_free: bool = False
    """Set by an op that visits segments in an undefined order."""
    peaks_depend_on_order: bool = False
    """Such an op took another order than recorded, so peaks may differ from then on."""
    metadata_before: str = ""
    """The metadata that this thread had before the run; restored afterwards."""
    noted: set[str] = field(default_factory=set)
    """Legitimate differences."""

    def close(self) -> None:
        """Break the references between allocator, device and script, which hold much memory."""
        self.script.queues = None
        set_user_metadata(self.metadata_before)

    def live_block(self, op: Op) -> int:
        if op["id"] not in self.live:
            raise FormatError(f"there is no block {op['id']} at this point")
        return self.blocks[op["id"]]

    def addresses(self, ids: list[int]) -> set[int]:
        return {known(self.blocks, "block", number) for number in ids}

    def stream(self, op: Op) -> int:
        return self.streams[op["stream"]]

    def current_stream(self, op: Op) -> AbstractContextManager[object]:
        """Make the op's stream, if it names one, the caller's current stream inside the block."""
        if "current" not in op:
            return nullcontext()
        return Stream.external(self.device, self.streams[op["current"]])

    def pool(self, op: Op) -> PoolId:
        return known(self.pools, "pool", op["pool"])

    def graph(self, op: Op) -> Graph:
        return known(self.graphs, "graph", op["graph"])


def known(names: dict[int, Value], kind: str, name: int) -> Value:
    if name not in names:
        raise FormatError(f"there is no {kind} {name} at this point")
    return names[name]


def world_of(recording: GroundTruth) -> World:
    """Return a new world in the state of the recorded run before its first op."""
    script = GoldenScript(recording.trace, recording.total_memory, recording.waited)
    device = SimulatedDevice(recording.total_memory, script=script)
    settings_in_force, fault = parse_leniently(recording.settings, compat=recording.compat)
    if fault:
        raise FormatError(f"'conf': {fault}")
    allocator = Allocator(device, settings=settings_in_force)
    allocator.history._resize_in_place()
    script.queues = allocator.inspection
    if recording.trace:  # without one, entries are only built where the recorded run built them
        allocator.history.attach_trace_tracker(script.observe)
        allocator.history.attach_trace_tracker(script.hear_entry, entries=True)
    if recording.limit:
        if recording.limit > recording.total_memory:
            raise FormatError("'limit' is more than 'total_memory'")
        allocator.limits.memory_fraction = recording.limit / recording.total_memory
    before = get_user_metadata()
    set_user_metadata("")
    return World(allocator, device, script, recording.streams, rules_of(recording.compat), metadata_before=before)
