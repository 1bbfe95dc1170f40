"""Positions of bits in a word, against Python's own ints."""

from hypothesis import given, settings
from hypothesis import strategies as st

WORDS = st.integers(1, (1 << 64) - 1) | st.builds(lambda low, high: 1 << low | 1 << high, *[st.integers(0, 63)] * 2)


@settings(deadline=None)
@given(word=WORDS)
def test_the_lowest_bit_is_the_first_that_is_set(tools, word):
    assert tools.lowest_bit(word) == (word & -word).bit_length() - 1


@settings(deadline=None)
@given(word=WORDS)
def test_the_highest_bit_is_the_last_that_is_set(tools, word):
    assert tools.highest_bit(word) == word.bit_length() - 1
