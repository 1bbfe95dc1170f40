"""Arrays that grow, against a list."""

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(deadline=None)
@given(steps=st.lists(st.lists(st.integers(0, (1 << 64) - 1), max_size=50), max_size=20))
def test_an_array_keeps_what_it_had_when_it_grows(tools, steps):
    array, model = tools.Numbers(), []
    for more in steps:
        array.extend(more)
        model += more
        assert array.content() == model
        assert array.room >= len(model)


def test_growing_one_by_one_moves_an_array_seldom(tools):
    array, rooms = tools.Numbers(), set()
    for number in range(10_000):
        array.extend([number])
        rooms.add(array.room)
    assert len(rooms) == 11  # 16, 32, ... 16384
