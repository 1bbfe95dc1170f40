"""The map from keys to pointers, against a dict."""

from hypothesis import given, settings
from hypothesis import strategies as st

PUT, POP, GET = "put", "pop", "get"

# Few different keys, so that most repeat; addresses like the engine's; arbitrary keys.
KEYS = st.integers(1, 40) | st.integers(1, 200).map(lambda number: number * 512) | st.integers(1, (1 << 64) - 1)
VALUES = st.integers(1, (1 << 64) - 1)
STEPS = st.lists(st.tuples(st.sampled_from([PUT, PUT, POP, GET]), KEYS, VALUES), max_size=300)


def check(table, model):
    """Every key of the model is found, no other key exists, and no search meets an empty slot before its key."""
    slots = table.slots()
    assert {key: value for key, value in slots if key} == model
    assert len(table) == len(model)
    assert 2 * len(table) <= len(slots)
    for place, (key, _) in enumerate(slots):
        home = table.home(key) if key else place
        way = [(home + step) % len(slots) for step in range((place - home) % len(slots))]
        assert all(slots[passed][0] for passed in way), "a hole between a key and its home"
    assert all(value == 0 for key, value in slots if not key)


@settings(deadline=None)
@given(steps=STEPS)
def test_a_map_holds_what_a_dict_holds(tools, steps):
    table, model = tools.Map(), {}
    for step, key, value in steps:
        if step == PUT:
            table.put(key, value)
            model[key] = value
        elif step == POP:
            assert table.pop(key) == model.pop(key, 0)
        assert table.get(key) == model.get(key, 0)
        check(table, model)


@settings(deadline=None)
@given(data=st.data())
def test_keys_that_share_a_home_are_distinguished_in_any_order_of_removal(tools, data):
    table = tools.Map()
    last = len(table.slots()) - 1
    wanted = {last: 4, 0: 3}  # a run that wraps around the end of the table
    keys = []
    for key in range(1, 10_000):
        if wanted.get(table.home(key), 0) > 0:
            wanted[table.home(key)] -= 1
            keys.append(key)
    model = {}
    for key in data.draw(st.permutations(keys)):
        table.put(key, key + 1)
        model[key] = key + 1
        check(table, model)
    for key in data.draw(st.permutations(keys)):
        assert table.pop(key) == model.pop(key)
        check(table, model)


def test_a_key_that_is_not_there_gives_nothing(tools):
    table = tools.Map()
    assert table.get(512) == table.pop(512) == 0
    table.put(512, 1)
    assert table.get(1024) == table.pop(1024) == 0
    assert table.get(0) == 0


def test_a_map_grows_by_doubling_and_keeps_what_it_had(tools):
    table, sizes = tools.Map(), []
    for number in range(1, 2001):
        table.put(number * 512, number)
        sizes.append(len(table.slots()))
    assert sorted(set(sizes)) == [16 << power for power in range(9)]
    assert all(table.get(number * 512) == number for number in range(1, 2001))


def test_a_map_that_is_large_enough_for_large_pages_keeps_what_it_had(tools):
    table, keys = tools.Map(), range(512, 300_000 * 512, 512)
    for key in keys:
        table.put(key, key + 1)
    assert all(table.get(key) == key + 1 for key in keys)
    assert all(table.pop(key) == key + 1 for key in keys[::2])
    assert [table.get(key) for key in keys[:4]] == [0, keys[1] + 1, 0, keys[3] + 1]
