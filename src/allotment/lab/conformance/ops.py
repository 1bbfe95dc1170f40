"""The calls that a recording can hold: what each does to the allocator, and what it must return.

An op is one function, registered with the shape of its fields. It raises Difference if the outcome is not the recorded
one. It does not compare the trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from allotment._core.records.history import set_user_metadata
from allotment._texts import PYTORCH_SUMMARY, memory_summary, pytorch_exact_address, pytorch_out_of_memory
from allotment.errors import (
    AddressError,
    AllotmentError,
    CheckpointError,
    DeviceError,
    FormatError,
    OutOfMemoryError,
    PoolError,
    RequestError,
    SettingsError,
    UnsupportedError,
)
from allotment.lab.conformance.compare import Difference, compare, compare_oom_text, compare_segments
from allotment.lab.conformance.file import (
    ADDRESS,
    BYTE,
    FLAG,
    FRACTION,
    NUMBER,
    OBJECT,
    OBJECTS,
    POOL_ID,
    SIZE,
    STREAM,
    TEXT,
    THREAD,
    Kind,
    Op,
    Shape,
    list_of,
    nullable,
    optional,
)
from allotment.lab.conformance.script import GoldenScript
from allotment.lab.conformance.trace import PoolId
from allotment.lab.conformance.world import Graph, World, known

Value = TypeVar("Value")

Operation = Callable[[World, Op], None]

OPERATIONS: dict[str, Operation] = {}
SHAPES: dict[str, Shape] = {}
QUESTIONS: set[str] = set()
"""Ops that change nothing: if the engine cannot answer one, all others can still be compared."""

_OWN_CALL = Kind(
    "calls of a custom allocator",
    lambda call: (
        isinstance(call, list)
        and len(call) == 4
        and call[0] in ("alloc", "free")
        and ADDRESS.holds(call[1])
        and all(map(SIZE.holds, call[2:]))
    ),
)
_COMMON: Shape = {"error": optional(TEXT), "own": optional(list_of(_OWN_CALL)), "current": optional(STREAM)}


def operation(**shape: Kind) -> Callable[[Operation], Operation]:
    """Register the function as the op of its name, with fields of this shape."""

    def register(function: Operation) -> Operation:
        OPERATIONS[function.__name__] = function
        SHAPES[function.__name__] = {**shape, **_COMMON}
        return function

    return register


def question(**shape: Kind) -> Callable[[Operation], Operation]:
    """Like `operation`, for an op that changes nothing."""

    def register(function: Operation) -> Operation:
        QUESTIONS.add(function.__name__)
        return operation(**shape)(function)

    return register


ANY_WORDS = "INTERNAL ASSERT FAILED"
"""The end of a recorded error in which the original reports an internal failure."""

ALREADY_ROUTED = "already recording to mempool_id"


def attempt(
    op: Op, call: Callable[[], Value], failure: type[AllotmentError], *, same_words: bool = False
) -> Value | None:
    """Return the call's result; None if it failed as recorded.

    Each allocator has its own wording, so by default only the kind of failure is compared.
    """
    try:
        result = call()
    except UnsupportedError:
        raise
    except failure as error:
        expected = op.get("error", "no error")
        may_differ = "error" in op and (not same_words or expected.endswith(ANY_WORDS))
        if not may_differ and str(error) != expected:
            raise Difference("outcome", expected, f"{type(error).__name__}: {error}") from None
        return None
    if "error" in op:
        raise Difference("outcome", op["error"], "no error")
    return result


# Requests and frees.


def thread_number(recorded: int) -> int:
    """Map a recorded thread: a recording counts from 0, and 0 means "the calling thread" in the allocator."""
    return recorded + 1


@operation(id=NUMBER, size=SIZE, stream=STREAM, addr=optional(ADDRESS), oom=optional(TEXT), thread=optional(THREAD))
def alloc(world: World, op: Op) -> None:
    thread = thread_number(op.get("thread", 0))
    try:
        address = attempt(op, lambda: world.allocator.pools.malloc_as(op["size"], world.stream(op), thread), PoolError)
    except OutOfMemoryError as error:
        text = pytorch_out_of_memory(error.facts, rules=world.rules)
        if "oom" not in op:
            raise Difference("outcome", op.get("addr", op.get("error")), text) from None
        compare_oom_text(op["oom"], text)
        return
    if address is None:
        busy_lenders = [pool for pool in world.lending_pools if pool in world.routed_pools]
        if ALREADY_ROUTED in op["error"] and busy_lenders:
            count_failed_use(world, busy_lenders[0])
        return
    if "addr" not in op:
        raise Difference("outcome", op.get("oom"), address)
    compare("address", op["addr"], address)
    if op["id"] in world.live:
        raise FormatError(f"block {op['id']} is allocated twice")
    world.blocks[op["id"]] = address
    world.live.add(op["id"])


@operation(id=NUMBER, size=SIZE, stream=STREAM, at=ADDRESS, addr=optional(ADDRESS))
def alloc_at(world: World, op: Op) -> None:
    try:
        address = world.allocator.pools.malloc_as(op["size"], world.stream(op), thread_number(0), op["at"])
    except AddressError:
        compare("outcome", op.get("error", "no error"), pytorch_exact_address(op["at"]))
        return
    if "addr" not in op:
        raise Difference("outcome", op.get("error"), address)
    compare("address", op["addr"], address)
    world.blocks[op["id"]] = address
    world.live.add(op["id"])


@operation(id=NUMBER)
def free(world: World, op: Op) -> None:
    world.allocator.free(world.live_block(op))
    world.live.remove(op["id"])


@operation(id=NUMBER, stream=STREAM)
def record_stream(world: World, op: Op) -> None:
    world.allocator.record_stream(world.live_block(op), world.stream(op))


@operation()
def empty_cache(world: World, op: Op) -> None:
    world.allocator.empty_cache()


# --- work on the device ---


@operation()
def sync(world: World, op: Op) -> None:
    world.script.synchronize()


@operation(stream=STREAM)
def sleep(world: World, op: Op) -> None:
    """Do nothing: a busy stream shows in the times at which its events finish, which the recording has."""


@operation(stream=STREAM)
def kernel(world: World, op: Op) -> None:
    world.device.launch(world.stream(op))


@operation(stream=STREAM, on=STREAM)
def wait(world: World, op: Op) -> None:
    world.device.wait(world.stream(op), world.streams[op["on"]])


# Private pools.


@operation(
    pool=NUMBER,
    mempool_id=POOL_ID,
    own_allocator=optional(FLAG),
    use_on_oom=optional(FLAG),
    no_split=optional(FLAG),
)
def pool_create(world: World, op: Op) -> None:
    pool_handle(world, op)
    pool = world.pool(op)
    world.allocator.pools.create_or_incref(pool, OwnAllocator(world.script) if op.get("own_allocator") else None)
    if op.get("use_on_oom"):
        world.allocator.pools.set_use_on_oom(pool, True)
        world.lending_pools.append(op["pool"])
    if op.get("no_split"):
        world.allocator.pools.set_no_split(pool)


@operation(pool=NUMBER, mempool_id=POOL_ID)
def pool_handle(world: World, op: Op) -> None:
    world.pools[op["pool"]] = pool_id(op["mempool_id"])


@operation(pool=NUMBER, filter=optional(TEXT), thread=optional(THREAD), stream=optional(STREAM))
def pool_begin(world: World, op: Op) -> None:
    stream = thread = None
    match op.get("filter", "all"):
        case "thread":
            thread = thread_number(required(op, "thread"))
        case "stream":
            stream = world.streams[required(op, "stream")]
        case "all":
            pass
        case other:
            raise FormatError(f"unknown filter {other!r}")

    def begin() -> None:
        if stream == 0:  # the framework's own check, before it calls the allocator
            raise PoolError("the default stream cannot be routed to a pool by itself")
        world.allocator.pools.begin_allocate_to_pool(world.pool(op), stream=stream, thread=thread)

    attempt(op, begin, PoolError)
    if ALREADY_ROUTED in op.get("error", ""):
        count_failed_use(world, op["pool"])
    elif "error" not in op:
        world.routed_pools.add(op["pool"])


def count_failed_use(world: World, pool: int) -> None:
    """The original counts a use of a pool before it refuses to route to it twice, and does not remove that use."""
    world.allocator.pools.create_or_incref(known(world.pools, "pool", pool))


@operation(pool=NUMBER)
def pool_end(world: World, op: Op) -> None:
    world.allocator.pools.end_allocate_to_pool(world.pool(op))
    world.allocator.pools.release(world.pool(op))
    world.routed_pools.discard(op["pool"])


@operation(pool=NUMBER)
def pool_delete(world: World, op: Op) -> None:
    pool = world.pool(op)
    if op["pool"] in world.lending_pools:
        world.allocator.pools.set_use_on_oom(pool, False)
        world.lending_pools.remove(op["pool"])
    world.allocator.pools.release(pool)
    world.allocator.empty_cache(pool)


@question(pool=NUMBER, value=NUMBER)
def use_count(world: World, op: Op) -> None:
    compare("use count", op["value"], world.allocator.pools.use_count(world.pool(op)))


@operation(n=NUMBER)
def own_fail(world: World, op: Op) -> None:
    """In the calls of the custom allocator, address 0 is a refusal."""


class OwnAllocator:
    """The custom allocator of private pools; the recording has its results."""

    def __init__(self, script: GoldenScript) -> None:
        self._script = script

    def allocate(self, size: int, stream: int) -> int:
        return self._script.own_allocate(size, stream)

    def free(self, address: int, size: int, stream: int) -> None:
        self._script.own_free(address, size, stream)


def pool_id(numbers: list[int]) -> PoolId:
    return (numbers[0], numbers[1])


def required(op: Op, name: str) -> Any:
    if name not in op:
        raise FormatError(f"there is no {name!r}")
    return op[name]


# Graph capture.


@operation(graph=NUMBER, stream=STREAM, mempool_id=nullable(POOL_ID))
def capture_begin(world: World, op: Op) -> None:
    stream = world.stream(op)
    if world.rules.generator_blocks == "first graph" and not world.graphs:
        world.generator_state = generator_blocks(world, stream)
    if op["mempool_id"] is None:
        world.graph_ids += 1
        pool = (world.graph_ids, 0)
    else:
        pool = pool_id(op["mempool_id"])
    graph = world.graphs[op["graph"]] = Graph(pool, stream)
    capture = world.device.begin_capture(stream)
    world.allocator.pools.begin_allocate_to_pool(pool, capture=capture)
    if world.rules.generator_blocks == "every capture":
        graph.generator_state = generator_blocks(world, 0)


def generator_blocks(world: World, stream: int) -> list[int]:
    """Make the requests of the framework's random generator when it takes part in captures."""
    return [world.allocator.pools.malloc_as(8, stream, thread_number(0)) for _ in range(2)]


@operation(graph=NUMBER, mempool_id=optional(POOL_ID))
def capture_end(world: World, op: Op) -> None:
    """If the device fails to end the capture, the oldest rules end nothing: routing stays, but accepts no stream."""
    graph = world.graph(op)
    attempt(op, lambda: world.device.end_capture(graph.stream), DeviceError)
    if "error" not in op:
        compare("pool id", required(op, "mempool_id"), graph.pool)
    if "error" not in op or world.rules.failed_capture_ends_routing:
        world.allocator.pools.end_allocate_to_pool(graph.pool)
    graph.captured = "error" not in op or world.rules.failed_capture_releases_pool


@operation(stream=STREAM)
def break_capture(world: World, op: Op) -> None:
    """The recorded error is that of the forbidden call, which did not reach the allocator."""
    world.device.break_capture(world.stream(op))


@operation(graph=NUMBER)
def graph_reset(world: World, op: Op) -> None:
    graph = world.graph(op)
    del world.graphs[op["graph"]]
    for address in reversed(graph.generator_state):
        world.allocator.free(address)
    if graph.captured:
        world.allocator.pools.release(graph.pool)
    if not world.graphs:
        for address in world.generator_state:
            world.allocator.free(address)
        world.generator_state = []


# Checkpoints.


@operation(pool=NUMBER, state=NUMBER, live=optional(list_of(NUMBER)))
def checkpoint(world: World, op: Op) -> None:
    pool = world.pool(op)
    state = attempt(op, lambda: world.allocator.pools.checkpoint(pool), CheckpointError)
    if state is None:
        return
    world.states[op["state"]] = state
    live = world.addresses(op["live"])
    compare("blocks in use are those recorded", True, world.allocator.pools.check_live_allocations(pool, live))


@operation(pool=NUMBER, state=NUMBER, stale=list_of(NUMBER), revived=list_of(NUMBER))
def restore(world: World, op: Op) -> None:
    world.trace_order_is_free = True
    freed, created = world.allocator.pools.restore(known(world.states, "state", op["state"]))
    of_this_pool = {block for block in world.live if world.blocks[block] in set(freed)}
    stale = set(op["stale"])
    compare("blocks that can no longer be freed", sorted(stale), sorted(stale & of_this_pool))
    still_in_use = world.addresses([*(of_this_pool - stale), *op["revived"]])
    compare("blocks in use", sorted(still_in_use), sorted(created))
    world.live.difference_update(stale)
    world.live.update(op["revived"])


@question(pool=NUMBER, addresses=list_of(ADDRESS), value=FLAG)
def check_live(world: World, op: Op) -> None:
    result = world.allocator.pools.check_live_allocations(world.pool(op), op["addresses"])
    compare("result", op["value"], result)


# Settings and limits.


@operation(stream=STREAM, name=TEXT)
def reserve_class(world: World, op: Op) -> None:
    world.allocator.pools.set_reserve_class(world.stream(op), op["name"])


@question(value=list_of(SIZE, length=2))
def gauges(world: World, op: Op) -> None:
    compare("bytes and number of ranges", op["value"], list(world.allocator.inspection.expandable_ranges()))


@operation(text=TEXT)
def settings(world: World, op: Op) -> None:
    with warnings.catch_warnings(action="ignore"):  # of values that PyTorch ignores: the recording holds some
        attempt(op, lambda: world.allocator._configure_leniently(op["text"]), SettingsError, same_words=True)


@operation(settings=OBJECT)
def read_settings(world: World, op: Op) -> None:
    compare("settings", op["settings"], world.allocator.snapshot()["allocator_settings"])


@operation(fraction=FRACTION, read_back=FRACTION)
def fraction(world: World, op: Op) -> None:
    world.allocator.limits.memory_fraction = op["fraction"]
    compare("fraction read back", op["read_back"], world.allocator.limits.memory_fraction)


# Statistics and snapshots.


@operation()
def reset_peak(world: World, op: Op) -> None:
    world.allocator.reset_peak_stats()
    world.peaks_depend_on_order = False


@operation()
def reset_accumulated(world: World, op: Op) -> None:
    world.allocator.inspection.reset_accumulated_stats()


@question(abbreviated=FLAG, text=TEXT)
def summary(world: World, op: Op) -> None:
    stats, device = world.allocator.stats(), world.device.index
    text = memory_summary(stats, device, abbreviated=op["abbreviated"], words=PYTORCH_SUMMARY)
    compare("lines", op["text"].split("\n"), text.split("\n"))


@operation(mempool_id=nullable(POOL_ID), segments=OBJECTS)
def snapshot(world: World, op: Op) -> None:
    pool = (0, 0) if op["mempool_id"] is None else pool_id(op["mempool_id"])
    reordered = world.script.tape.reordered_completions
    world.noted |= compare_segments("segments", op["segments"], world.allocator.history._segments_of(pool), reordered)


@question(id=NUMBER, offset=SIZE, handle_length=NUMBER, handle_start=list_of(BYTE, length=2))
def share(world: World, op: Op) -> None:
    offset, handle = world.allocator.share_torch(world.live_block(op))
    compare("offset", op["offset"], offset)
    compare("length of the handle", op["handle_length"], len(handle))
    compare("start of the handle", op["handle_start"], list(handle[:2]))


# History.

_HISTORY_CHOICES = ("enabled", "context", "stacks", "max_entries", "clear_history", "skip_actions")


@operation(
    enabled=optional(nullable(TEXT)),
    context=optional(nullable(TEXT)),
    stacks=optional(TEXT),
    max_entries=optional(NUMBER),
    clear_history=optional(FLAG),
    compile_context=optional(FLAG),
    global_record_annotations=optional(FLAG),
    skip_actions=optional(nullable(list_of(TEXT))),
)
def history(world: World, op: Op) -> None:
    world.allocator.record_history(**{name: op[name] for name in _HISTORY_CHOICES if name in op})


@operation(id=NUMBER, text=TEXT)
def annotate_memory(world: World, op: Op) -> None:
    attempt(op, lambda: world.allocator.history.annotate(world.live_block(op), op["text"]), RequestError)


@operation(text=TEXT)
def metadata(world: World, op: Op) -> None:
    set_user_metadata(op["text"])


@operation(name=TEXT)
def annotate(world: World, op: Op) -> None:
    for stage in ("START", "END"):
        world.allocator.history.record_annotation({"name": op["name"], "stage": stage})


@operation(trace=OBJECTS, segments=OBJECTS, annotations=OBJECTS, settings=OBJECT, keys=list_of(TEXT), devices=NUMBER)
def full_snapshot(world: World, op: Op) -> None:
    got = world.allocator.snapshot()
    compare("keys", op["keys"], sorted(got))
    compare("number of devices", op["devices"], len(got["device_traces"]))
    entries = [{"frames": False, **entry} for entry in op["trace"]]
    compare("trace", [without_device_free(entry) for entry in entries], seen_frames(got["device_traces"][0]))
    segments = [{**segment, "blocks": seen_frames(segment["blocks"])} for segment in got["segments"]]
    compare_segments("segments", op["segments"], seen_frames(segments))
    compare("annotations", op["annotations"], got["external_annotations"])
    compare("settings", op["settings"], got["allocator_settings"])


def seen_frames(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records, with whether a context was recorded in place of the context."""
    return [{**record, "frames": bool(record.get("frames"))} for record in records]


def without_device_free(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "device_free"}
