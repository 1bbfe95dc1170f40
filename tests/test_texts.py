import os
from dataclasses import replace

import pytest

from allotment._formats.pickle_columns import Frame
from allotment._texts import (
    PYTORCH_SUMMARY,
    device_neutral_out_of_memory,
    format_size,
    memory_summary,
    printable,
    pytorch_out_of_memory,
)
from allotment.errors import OutOfMemoryError, OutOfMemoryFacts
from allotment.lab.explain.holders import line_of
from allotment.lab.timeline.groups import _innermost, _stack_name

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (MIB + 1, "1.00 MiB"),
        (GIB, "1024.00 MiB"),
        (GIB + 1, "1.00 GiB"),
        (150109880320, "139.80 GiB"),
        (2**60, "1073741824.00 GiB"),
    ],
)
def test_sizes_have_two_decimals_and_keep_the_unit_at_its_exact_bound(size, text):
    assert format_size(size) == text


# -- Out of memory ---------------------------------------------------------------------------------------------------

UNDER_A_LIMIT = OutOfMemoryFacts(
    device="cuda:0",
    device_index=0,
    requested=GIB,
    rounded=GIB,
    segment_size=GIB,
    device_free=148483735552,
    device_total=150109880320,
    limit=GIB,
    allocated=GIB,
    reserved=GIB,
    private_free=0,
    largest_free=0,
    stream=0,
)

ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def test_pytorch_message_under_a_limit_equals_the_recorded_one():
    recorded = (
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which"
        " 138.29 GiB is free. Including non-PyTorch memory, this process has 1.51 GiB memory in use. 1024.00 MiB"
        " allowed; Of the allocated memory 1024.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but"
        " unallocated." + ADVICE
    )
    facts = replace(UNDER_A_LIMIT, processes=((os.getpid(), int(1.51 * 2**30)),))
    assert pytorch_out_of_memory(facts) == recorded


def test_both_messages_name_the_processes_that_hold_memory():
    facts = replace(UNDER_A_LIMIT, processes=((os.getpid(), GIB), (12, 512 * MIB)))
    assert "this process has 1024.00 MiB memory in use. Process 12 has 512.00 MiB memory in use. " in (
        pytorch_out_of_memory(facts)
    )
    assert ", in use by this process 1024.00 MiB, process 12 512.00 MiB. Allocator:" in (
        device_neutral_out_of_memory(facts)
    )


def test_pytorch_message_counts_free_memory_of_private_pools_as_allocated():
    facts = replace(
        UNDER_A_LIMIT,
        device_index=3,
        limit=None,
        allocated=100 * MIB,
        reserved=150 * MIB,
        private_free=20 * MIB,
        segment_size=26 * MIB,
    )
    assert pytorch_out_of_memory(facts) == (
        "CUDA out of memory. Tried to allocate 26.00 MiB. GPU 3 has a total capacity of 139.80 GiB of which"
        " 138.29 GiB is free. Of the allocated memory 120.00 MiB is allocated by PyTorch, with 20.00 MiB allocated in"
        " private pools (e.g., CUDA Graphs), and 30.00 MiB is reserved by PyTorch but unallocated." + ADVICE
    )


def test_absurd_request_gives_no_figures_that_were_not_gathered():
    facts = replace(UNDER_A_LIMIT, requested=2**60, too_large=True)
    assert pytorch_out_of_memory(facts) == "CUDA out of memory. Tried to allocate more than 1EB memory."
    assert device_neutral_out_of_memory(facts) == (
        "Out of memory on cuda:0: 1152921504606846976 bytes were requested, more than any device has."
        " Check how the size was computed."
    )


def test_own_message_names_device_request_room_and_remedy():
    facts = replace(
        UNDER_A_LIMIT,
        device="sim:80GiB",
        requested=7 * MIB,
        rounded=7 * MIB,
        segment_size=20 * MIB,
        device_free=60 * GIB,
        device_total=80 * GIB,
        limit=20 * GIB,
        allocated=19 * GIB,
        reserved=20 * GIB,
        private_free=300 * MIB,
        largest_free=5 * MIB,
        stream=7,
    )
    assert str(OutOfMemoryError(facts)) == (
        "Out of memory on sim:80GiB: 7.00 MiB requested on stream 7, for which a segment of 20.00 MiB was needed."
        " Device: 60.00 GiB free of 80.00 GiB."
        " Allocator: 20.00 GiB reserved (limit 20.00 GiB), 19.00 GiB in use, 300.00 MiB free in private pools;"
        " largest free block 5.00 MiB."
        " Try: raise the limit;"
        " expandable_segments:True (enough is reserved and unused, but in pieces or for other streams);"
        " release private pools, or let them serve others with use_on_oom;"
        " free blocks that are no longer needed, or request less at a time."
    )


def test_own_message_advises_only_what_could_help():
    full = replace(UNDER_A_LIMIT, limit=None, device_free=0)
    assert device_neutral_out_of_memory(full).endswith(
        " Try: free blocks that are no longer needed, or request less at a time."
    )
    assert "(no limit)" in device_neutral_out_of_memory(full)
    limited_but_device_full_too = replace(UNDER_A_LIMIT, device_free=0)
    assert "raise the limit" not in device_neutral_out_of_memory(limited_but_device_full_too)


# -- Memory summary --------------------------------------------------------------------------------------------------

COLUMNS = ("current", "peak", "allocated", "freed")


def flat_stats(counters, **plain):
    """Flat statistics from {counter: row} or {counter: {pool class: row}}."""
    stats = dict(plain)
    for counter, rows in counters.items():
        for pool_class, row in rows.items() if isinstance(rows, dict) else [("", rows)]:
            prefix = f"{counter}.{pool_class}" if pool_class else counter
            stats.update({f"{prefix}.{column}": value for column, value in zip(COLUMNS, row, strict=True)})
    return stats


RECORDED_STATS = flat_stats(
    {
        "allocated_bytes": {"all": (218459136, 322940416, 1244006400, 1025547264)},
        "active_bytes": {"all": (218459136, 322940416, 1244006400, 1025547264)},
        "requested_bytes": {"all": (216545537, 321697654, 1235963018, 1019417481)},
        "reserved_bytes": {"all": (589299712, 589299712, 922746880, 333447168)},
        "inactive_split_bytes": {"all": (58364928, 83186688, 323766784, 265401856)},
        "allocation": {"all": (27, 32, 133, 106)},
        "active": {"all": (27, 32, 133, 106)},
        "segment": {"all": (33, 33, 47, 14)},
        "inactive_split": {"all": (17, 24, 68, 51)},
        "oversize_allocations": (0, 0, 0, 0),
        "oversize_segments": (0, 0, 0, 0),
    },
    num_ooms=13,
    num_alloc_retries=3,
)

RECORDED_SUMMARY = """\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 13           |        cudaMalloc retries: 3         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      | 213339 KiB | 315371 KiB |   1186 MiB |    978 MiB |
|---------------------------------------------------------------------------|
| Active memory         | 213339 KiB | 315371 KiB |   1186 MiB |    978 MiB |
|---------------------------------------------------------------------------|
| Requested memory      | 211470 KiB | 314157 KiB |   1178 MiB |    972 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   | 575488 KiB | 575488 KiB |    880 MiB | 325632 KiB |
|---------------------------------------------------------------------------|
| Non-releasable memory |  56997 KiB |  81237 KiB | 316178 KiB | 259181 KiB |
|---------------------------------------------------------------------------|
| Allocations           |      27    |      32    |     133    |     106    |
|---------------------------------------------------------------------------|
| Active allocs         |      27    |      32    |     133    |     106    |
|---------------------------------------------------------------------------|
| GPU reserved segments |      33    |      33    |      47    |      14    |
|---------------------------------------------------------------------------|
| Non-releasable allocs |      17    |      24    |      68    |      51    |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |       0    |       0    |       0    |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |       0    |       0    |       0    |
|===========================================================================|
"""


def test_abbreviated_summary_in_pytorch_words_equals_the_recorded_one():
    assert memory_summary(RECORDED_STATS, 0, abbreviated=True, words=PYTORCH_SUMMARY) == RECORDED_SUMMARY


def test_own_words_change_no_figure_and_no_line():
    own = memory_summary(RECORDED_STATS, "sim:80GiB", abbreviated=True).splitlines()
    recorded = RECORDED_SUMMARY.splitlines()
    assert own[1] == "|                 Allotment memory summary, device sim:80GiB                |"
    assert own[3] == "|          Out of memory: 13         |       Device malloc retries: 3       |"
    assert "GPU" not in "".join(own) and "CUDA" not in "".join(own)
    assert [line[24:] for line in own[4:]] == [line[24:] for line in recorded[4:]]


def test_lines_of_the_pools_use_the_unit_of_their_sum():
    rows = {
        "all": (2 * GIB, 10, 768 * KIB, 0),
        "large_pool": (2 * GIB - 5 * MIB, 4, 0, 0),
        "small_pool": (5 * MIB, 6, 768 * KIB, 0),
    }
    counts = {"all": (750_000, 749_999, 7, 0), "large_pool": (749_001, 0, 7, 0), "small_pool": (999, 749_999, 0, 0)}
    nothing = dict.fromkeys(("all", "large_pool", "small_pool"), (0, 0, 0, 0))
    stats = RECORDED_STATS | flat_stats(
        {
            **dict.fromkeys(("active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes"), nothing),
            **dict.fromkeys(("active", "segment", "inactive_split"), nothing),
            "allocated_bytes": rows,
            "allocation": counts,
        }
    )
    lines = memory_summary(stats, 0).splitlines()
    assert lines[7:10] == [
        "| Allocated memory      |   2048 MiB |     10 B   |    768 KiB |      0 B   |",
        "|       from large pool |   2043 MiB |      4 B   |      0 KiB |      0 B   |",
        "|       from small pool |      5 MiB |      6 B   |    768 KiB |      0 B   |",
    ]
    assert lines[27:30] == [
        "| Allocations           |     750 K  |  749999    |       7    |       0    |",
        "|       from large pool |     749 K  |       0    |       7    |       0    |",
        "|       from small pool |       0 K  |  749999    |       0    |       0    |",
    ]
    assert {len(line) for line in lines} == {77}
    assert len(lines) == len(RECORDED_SUMMARY.splitlines()) + 2 * 9


def test_a_long_device_name_does_not_break_the_box():
    assert {len(line) for line in memory_summary(RECORDED_STATS, "x" * 100, abbreviated=True).splitlines()} == {77}


@pytest.mark.parametrize("name_of", [line_of, _innermost, _stack_name])
def test_names_of_a_file_bring_no_control_characters_to_the_terminal(name_of):
    text = name_of((Frame("step\x1b[2J", "/work/\x9b\u202etrain.py", 3),))
    assert text.isprintable()
    assert "step\\x1b[2J" in text and "\\u202etrain.py" in text


def test_what_can_be_printed_stays_as_it_is():
    for text in ("", "a b", "Größe 3 µs", "\N{GREEK SMALL LETTER ALPHA}"):
        assert printable(text) is text
    assert printable("a\nb\ud800\x00") == "a\\nb\\ud800\\x00"
