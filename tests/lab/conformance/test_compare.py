import pytest

from allotment.lab.conformance.compare import Difference, compare, compare_oom_text, compare_segments, compare_stats


def test_the_first_place_that_differs_is_named():
    with pytest.raises(Difference) as difference:
        compare("settings", {"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": [1, 3]}, "ours": 0})
    assert (difference.value.what, difference.value.expected, difference.value.got) == ("settings.b.c[1]", 2, 3)


@pytest.mark.parametrize(("expected", "got"), [([1], [1, 2]), ([1, 2], [1]), ({"a": 1}, {}), (True, 1), ([], {})])
def test_things_of_another_shape_differ(expected, got):
    with pytest.raises(Difference):
        compare("it", expected, got)


def test_pairs_compare_equal_to_lists_of_two():
    compare("pool", [0, 1], (0, 1))


def test_counters_that_depend_on_the_order_of_completions_are_noted():
    recorded = {"inactive_split_bytes.all.peak": 1, "active.all.peak": 5}
    noted = compare_stats(recorded, {"inactive_split_bytes.all.peak": 2, "active.all.peak": 5}, False)
    assert noted == {"inactive_split_bytes.all.peak"}


@pytest.mark.parametrize("name", ["active.all.peak", "inactive_split.all.current", "inactive_split_bytes.all.current"])
def test_other_counters_must_be_equal(name):
    with pytest.raises(Difference, match=name):
        compare_stats({name: 1}, {name: 2}, peaks_depend_on_order=False)


def test_peaks_may_differ_once_segments_came_in_another_order():
    assert compare_stats({"active.all.peak": 1}, {"active.all.peak": 2}, True) == {"active.all.peak"}
    with pytest.raises(Difference):
        compare_stats({"active.all.allocated": 1}, {"active.all.allocated": 2}, True)


def test_a_counter_too_few_is_a_difference():
    with pytest.raises(Difference, match="num_ooms"):
        compare_stats({"num_ooms": 0}, {}, False)


def segment(state: str, requested: int) -> dict[str, object]:
    block = {"address": 4096, "size": 2048, "requested_size": requested, "state": state}
    return {"address": 4096, "total_size": 2048, "blocks": [block]}


def test_a_stale_size_may_differ_where_completions_came_in_another_order():
    expected, got = [segment("inactive", 1)], [segment("inactive", 2)]
    assert compare_segments("segments", expected, got, reordered={4096}) == {"requested_size of inactive blocks"}
    with pytest.raises(Difference, match="requested_size"):
        compare_segments("segments", expected, got, reordered={8192})


def test_the_size_of_a_block_in_use_is_never_stale():
    expected, got = [segment("active_allocated", 1)], [segment("active_allocated", 2)]
    with pytest.raises(Difference, match="requested_size"):
        compare_segments("segments", expected, got, reordered={4096})


RECORDED = (
    "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 1.00 GiB "
    "is free. Process 1160 has 1.51 GiB memory in use. Including non-PyTorch memory, this process has 1.51 GiB memory "
    "in use. {limit}Of the allocated memory 1.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
    "unallocated. If reserved ..."
)


@pytest.mark.parametrize("limit", ["", "1024.00 MiB allowed; "])
def test_what_other_processes_hold_does_not_count(limit):
    text = RECORDED.format(limit=limit)
    start, end = text.index("Process 1160"), text.index(limit + "Of the allocated")
    compare_oom_text(text, text[:start] + text[end:])


def test_the_advice_at_the_end_counts_too():
    text = RECORDED.format(limit="")
    with pytest.raises(Difference):
        compare_oom_text(text, text.replace("If reserved ...", "Try this."))


@pytest.mark.parametrize("figure", ["2.00 MiB", "139.80 GiB", "1.00 GiB", "1024.00 MiB", "1.00 MiB", "0 bytes"])
def test_every_other_figure_of_a_refusal_counts(figure):
    text = RECORDED.format(limit="1024.00 MiB allowed; ")
    with pytest.raises(Difference):
        compare_oom_text(text, text.replace(figure, "7 bytes", 1))


def test_a_limit_that_is_not_reported_is_a_difference():
    with pytest.raises(Difference):
        compare_oom_text(RECORDED.format(limit="1024.00 MiB allowed; "), RECORDED.format(limit=""))
