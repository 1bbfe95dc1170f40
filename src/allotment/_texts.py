"""Renders facts as text for people: sizes, the out-of-memory message, the memory summary.

Each text has two renderings of the same facts: PyTorch's exact wording, which users' tools match on, and
Allotment's own, which names no vendor and is the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment._rules import NEWEST, rules_of

if TYPE_CHECKING:
    from allotment._rules import Rules
    from allotment.errors import OutOfMemoryFacts

__all__ = [
    "DEVICE_NEUTRAL_SUMMARY",
    "PYTORCH_SUMMARY",
    "SummaryWords",
    "device_neutral_out_of_memory",
    "exact_size",
    "format_size",
    "memory_summary",
    "printable",
    "pytorch_exact_address",
    "pytorch_out_of_memory",
    "signed_size",
]

_KIB = 1 << 10
_MIB = 1 << 20
_GIB = 1 << 30


def format_size(n: int) -> str:
    """Return `n` bytes with two decimals and a unit. A unit's exact bound still has the smaller unit: "1024.00 KiB"."""
    if n <= _KIB:
        return f"{n} bytes"
    if n <= _MIB:
        return f"{n / _KIB:.2f} KiB"
    if n <= _GIB:
        return f"{n / _MIB:.2f} MiB"
    return f"{n / _GIB:.2f} GiB"


def exact_size(size: int) -> str:
    """Return a number of bytes with enough digits for a decision: in MiB, with a separator from a thousand on."""
    if size < 1 << 10:
        return f"{size} B"
    if size < 1 << 20:
        return f"{size / (1 << 10):.1f} KiB"
    return f"{size / (1 << 20):,.1f} MiB"


def printable(text: str) -> str:
    """Return text of a file or of another process with control characters escaped, for a message or a terminal.

    A terminal would obey them: they can clear the screen, or change what a line says.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def signed_size(change: int) -> str:
    """Return how many bytes more or fewer, with a sign."""
    return f"{'-' if change < 0 else '+'}{exact_size(abs(change))}"


# -- Out of memory ---------------------------------------------------------------------------------------------------

_PYTORCH_ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)

_PYTORCH_RESERVE_ADVICE = (
    " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ), expandable"
    " segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of streams);"
    " reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / expandable_segments_reserve_by_class."
)


def pytorch_out_of_memory(facts: OutOfMemoryFacts, *, rules: Rules | None = None) -> str:
    """Return PyTorch's message for these facts, to the letter; that of the newest version, or of its `rules`."""
    if facts.too_large:
        return "CUDA out of memory. Tried to allocate more than 1EB memory."
    if facts.device_pool:
        return _pytorch_device_pool_out_of_memory(facts)
    if facts.rejected:
        return (
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
            f" per_process_memory_fraction limit. Requested size: {format_size(facts.requested)}"
        )
    in_pools = facts.private_free
    limit = "" if facts.limit is None else f"{format_size(facts.limit)} allowed; "
    pools = f"with {format_size(in_pools)} allocated in private pools (e.g., CUDA Graphs), " if in_pools else ""
    return (
        f"CUDA out of memory. Tried to allocate {format_size(facts.segment_size)}. GPU {facts.device_index}"
        f" has a total capacity of {format_size(facts.device_total)}"
        f" of which {format_size(facts.device_free)} is free. {_pytorch_processes(facts)}{limit}"
        f"Of the allocated memory {format_size(facts.allocated + in_pools)} is allocated by PyTorch, {pools}"
        f"and {format_size(facts.reserved - facts.allocated - in_pools)} is reserved by PyTorch but unallocated."
        f"{_pytorch_advice(facts, rules or rules_of(NEWEST))}"
    )


def _pytorch_advice(facts: OutOfMemoryFacts, rules: Rules) -> str:
    if rules.out_of_memory_hint == "always" or not facts.expandable:
        return _PYTORCH_ADVICE
    if rules.out_of_memory_hint == "plain memory":
        return ""
    if facts.range_bytes is None or not facts.range_bytes < facts.segment_size <= facts.device_total:
        return _PYTORCH_RESERVE_ADVICE
    whose = f" for stream reserve class '{facts.range_class}'" if facts.range_class else " for this stream"
    return (
        f" This allocation exceeds the expandable-segment reserve of {format_size(facts.range_bytes)}{whose}, and a"
        " single allocation cannot span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve"
        " or expandable_segments_reserve_by_class (or unset it) so that a segment is at least"
        f" {format_size(facts.segment_size)}."
    )


def pytorch_exact_address(address: int) -> str:
    """Return PyTorch's message for a failed allocation at an address."""
    if address % 512:
        return f"mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got {address:#x}"
    return f"Could not allocate CUDA storage at exact address {address:#x}"


def _pytorch_processes(facts: OutOfMemoryFacts) -> str:
    return "".join(
        f"{'Including non-PyTorch memory, this process' if process == os.getpid() else f'Process {process}'}"
        f" has {format_size(size)} memory in use. "
        for process, size in facts.processes
    )


def _pytorch_device_pool_out_of_memory(facts: OutOfMemoryFacts) -> str:
    limit = 2**64 - 1 if facts.limit is None else facts.limit
    return (
        f"Allocation on device {facts.device_index} would exceed allowed memory. (out of memory)"
        f"\nCurrently allocated     : {format_size(facts.allocated)}"
        f"\nRequested               : {format_size(facts.requested)}"
        f"\nDevice limit            : {format_size(facts.device_total)}"
        f"\nFree (according to CUDA): {format_size(facts.device_free)}"
        f"\nPyTorch limit (set by user-supplied memory fraction)"
        f"\n                        : {format_size(limit)}"
    )


def device_neutral_out_of_memory(facts: OutOfMemoryFacts) -> str:
    """Return what was requested from which device, why it failed, and what to try."""
    if facts.too_large:
        return (
            f"Out of memory on {facts.device}: {facts.requested} bytes were requested, more than any device has."
            " Check how the size was computed."
        )
    of_another = facts.limited_by not in (None, "the allocator")
    limit = "no limit" if facts.limit is None or of_another else f"limit {format_size(facts.limit)}"
    if facts.rejected:
        return (
            f"Out of memory on {facts.device}: {format_size(facts.requested)} requested on stream {facts.stream} would"
            f" take more than per_process_memory_fraction allows ({limit}, {format_size(facts.reserved)} reserved); by"
            " throw_on_cudamalloc_oom:True the device was not asked, and nothing was released."
            " Try: raise per_process_memory_fraction; empty the cache; free blocks that are no longer needed."
        )
    if facts.device_pool:
        return (
            f"Out of memory on {facts.device}: {format_size(facts.requested)} requested on stream {facts.stream}"
            f" of the device's own pool.{_device_memory(facts)}"
            f" Pool: {format_size(facts.reserved)} held; {format_size(facts.allocated)} in use by this allocator"
            f" ({limit})."
            f" Try: {'; '.join(_device_pool_remedies(facts))}."
        )
    if facts.address_space:
        return (
            f"Out of address space on {facts.device}: {format_size(facts.requested)} requested on stream"
            f" {facts.stream}, and the device refused to reserve addresses for them; memory is not short."
            f"{_device_memory(facts)} Allocator: {format_size(facts.reserved)} reserved,"
            f" {format_size(facts.allocated)} in use. Try: use fewer allocators and private pools in one process, and"
            " close those that are no longer needed; raise the process's limit of address space (ulimit -v)."
        )
    return (
        f"Out of memory on {facts.device}: {format_size(facts.requested)} requested on stream {facts.stream},"
        f" for which a segment of {format_size(facts.segment_size)} was needed.{_device_memory(facts)}"
        f" Allocator: {format_size(facts.reserved)} reserved ({limit}), {format_size(facts.allocated)} in use,"
        f" {format_size(facts.private_free)} free in private pools;"
        f" largest free block {format_size(facts.largest_free)}{_joinable(facts)}."
        f"{_limiter(facts)} Try: {'; '.join(_remedies(facts))}."
    )


def _limiter(facts: OutOfMemoryFacts) -> str:
    """Return whose limit it was, unless it is the allocator's, which the message has anyway."""
    if facts.limited_by in (None, "the allocator"):
        return ""
    if facts.limit is None or facts.limited_by.startswith("reserved for"):
        return f" The rest is {facts.limited_by}."
    return f" The limit of {facts.limited_by} was reached: {format_size(facts.limit)}."


def _joinable(facts: OutOfMemoryFacts) -> str:
    if facts.joinable is None:
        return ""
    return f", {format_size(facts.joinable)} by putting free memory side by side"


def _device_memory(facts: OutOfMemoryFacts) -> str:
    """Return nothing without a device, or if it does not report its memory."""
    if not facts.device_total:
        return ""
    free = f" Device: {format_size(facts.device_free)} free of {format_size(facts.device_total)}"
    return f"{free}{_processes(facts)}."


def _processes(facts: OutOfMemoryFacts) -> str:
    held = [
        f"{'this process' if process == os.getpid() else f'process {process}'} {format_size(size)}"
        for process, size in facts.processes
    ]
    return f", in use by {', '.join(held)}" if held else ""


def _remedies(facts: OutOfMemoryFacts) -> Iterator[str]:
    unused = facts.reserved - facts.allocated - facts.private_free
    if facts.limited_by not in (None, "the allocator"):
        yield "raise that limit" if not facts.limited_by.startswith("reserved for") else "reserve less"
        yield "free blocks that are no longer needed, or request less at a time"
        return
    over_limit = facts.limit is not None and facts.reserved + facts.segment_size > facts.limit
    fits_without_limit = facts.device_free >= facts.segment_size
    if over_limit and fits_without_limit:
        yield "raise the limit"
    if unused >= facts.rounded and facts.joinable is None:
        yield "expandable_segments:True (enough is reserved and unused, but in pieces or for other streams)"
    if facts.private_free >= facts.rounded:
        yield "release private pools, or let them serve others with use_on_oom"
    yield "free blocks that are no longer needed, or request less at a time"


def _device_pool_remedies(facts: OutOfMemoryFacts) -> Iterator[str]:
    if facts.limit is not None and facts.allocated + facts.requested > facts.limit:
        yield "raise the limit"
    yield "free blocks that are no longer needed, or request less at a time"


# -- Memory summary --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SummaryWords:
    """The words of a memory summary; its layout is the same in every wording."""

    title: str
    out_of_memory: str
    retries: str
    metrics: Mapping[str, str]
    """Name of each counter's rows, by the counter's key in the statistics. Keys ending in "_bytes" are sizes."""


DEVICE_NEUTRAL_SUMMARY = SummaryWords(
    title="Allotment memory summary, device ",
    out_of_memory="Out of memory: ",
    retries="Device malloc retries: ",
    metrics={
        "allocated_bytes": "Allocated memory",
        "active_bytes": "Active memory",
        "requested_bytes": "Requested memory",
        "reserved_bytes": "Reserved memory",
        "inactive_split_bytes": "Non-releasable memory",
        "allocation": "Allocations",
        "active": "Active allocs",
        "segment": "Reserved segments",
        "inactive_split": "Non-releasable allocs",
        "oversize_allocations": "Oversize allocations",
        "oversize_segments": "Oversize segments",
    },
)

PYTORCH_SUMMARY = SummaryWords(
    title="PyTorch CUDA memory summary, device ID ",
    out_of_memory="CUDA OOMs: ",
    retries="cudaMalloc retries: ",
    metrics={
        **DEVICE_NEUTRAL_SUMMARY.metrics,
        "reserved_bytes": "GPU reserved memory",
        "segment": "GPU reserved segments",
        "oversize_segments": "Oversize GPU segments",
    },
)

_WIDTH = 75
_COLUMNS = {"Cur Usage": "current", "Peak Usage": "peak", "Tot Alloc": "allocated", "Tot Freed": "freed"}
_POOL_CLASSES = {"large_pool": "from large pool", "small_pool": "from small pool"}


def memory_summary(
    stats: Mapping[str, int],
    device: str | int,
    *,
    abbreviated: bool = False,
    words: SummaryWords = DEVICE_NEUTRAL_SUMMARY,
) -> str:
    """Return the statistics as a boxed table, every line ended by a newline.

    `stats` is the flat form ("allocated_bytes.all.current", ...). `abbreviated` omits the lines of the small and the
    large pool. With `PYTORCH_SUMMARY` and a device index the result equals PyTorch's, to the letter.
    """
    double, single = "=" * _WIDTH, "-" * _WIDTH
    left, right = 36, 38
    lines = [
        double,
        _centred(words.title, device, _WIDTH),
        single,
        _centred(words.out_of_memory, stats["num_ooms"], left)
        + "|"
        + _centred(words.retries, stats["num_alloc_retries"], right),
        double,
        _row("Metric".center(20), list(_COLUMNS)),
    ]
    for metric, name in words.metrics.items():
        lines.append(single)
        lines.extend(_metric_rows(stats, metric, name, abbreviated))
    lines.append(double)
    return "".join(f"|{line}|\n" for line in lines)


def _centred(label: str, value: str | int, width: int) -> str:
    # A number counts as one digit, so that the label stays in place when the number grows.
    typical = label + (value if isinstance(value, str) else "0")
    indent = typical.center(width).index(typical)
    return f"{' ' * indent}{label}{value}".ljust(width)[:width]


def _metric_rows(stats: Mapping[str, int], metric: str, name: str, abbreviated: bool) -> Iterator[str]:
    cell = _size_cell if metric.endswith("_bytes") else _count_cell
    by_pool_class = f"{metric}.all.current" in stats
    whole = f"{metric}.all" if by_pool_class else metric
    totals = [stats[f"{whole}.{column}"] for column in _COLUMNS.values()]
    yield _row(name, [cell(total, total) for total in totals])
    if abbreviated or not by_pool_class:
        return
    for pool_class, pool_name in _POOL_CLASSES.items():
        values = [stats[f"{metric}.{pool_class}.{column}"] for column in _COLUMNS.values()]
        yield _row("      " + pool_name, [cell(value, total) for value, total in zip(values, totals, strict=True)])


def _row(name: str, cells: list[str]) -> str:
    return " " + " | ".join([f"{name:<21}", *(f"{cell:<10}" for cell in cells)]) + " "


def _size_cell(value: int, reference: int) -> str:
    """Return `value` in the unit that suits `reference`, so that a column's parts can be compared with their sum."""
    units = ["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]
    scaled, unit = _scale(value, reference, units, step=1024, enough=768 * 1024)
    return f"{scaled:6d} {unit}"


def _count_cell(value: int, reference: int) -> str:
    scaled, unit = _scale(value, reference, [" ", "K", "M"], step=1000, enough=750 * 1000)
    return f"{scaled:7d} {unit} "


def _scale(value: int, reference: int, units: list[str], *, step: int, enough: int) -> tuple[int, str]:
    power = 0
    while reference >= enough and power < len(units) - 1:
        value //= step
        reference //= step
        power += 1
    return value, units[power]
