"""Ordered keys and intervals against a set and a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from allotment.lab.replay import intervals
from allotment.lab.replay.intervals import Intervals, SortedKeys

points = st.integers(0, 40)


@given(st.lists(points), st.integers(2, 6))
def test_sorted_keys_are_a_sorted_set(keys, longest):
    was, intervals._LONGEST = intervals._LONGEST, longest
    try:
        known, ordered = set(), SortedKeys()
        for key in keys:
            if key in known:
                known.remove(key)
                ordered.remove(key)
            else:
                known.add(key)
                ordered.add(key)
            assert list(ordered) == sorted(known)
            for point in range(-1, 42):
                assert ordered.at_or_before(point) == max((k for k in known if k <= point), default=None)
                assert ordered.after(point) == min((k for k in known if k > point), default=None)
    finally:
        intervals._LONGEST = was


@given(st.lists(st.tuples(points, points, st.none() | st.integers(1, 3))))
def test_stretches_are_a_dictionary_of_their_points(changes):
    known, stretches = {}, Intervals()
    for start, end, value in changes:
        inside = range(start, end)
        there = [point for point in inside if point in known]
        if value is None:
            taken = stretches.clear(start, end)
            assert {p: v for first, last, v in taken for p in range(first, last)} == {p: known[p] for p in there}
            for point in there:
                del known[point]
        else:
            assert stretches.put(start, end, value) == len(inside) - len(there)
            known.update(dict.fromkeys(inside, value))
        assert {p: v for first, last, v in stretches for p in range(first, last)} == known
        assert bool(stretches) == bool(known)
        for point in range(41):
            assert stretches.at(point) == known.get(point)
        assert stretches.first_in(start, end) == next((known[point] for point in inside if point in known), None)
