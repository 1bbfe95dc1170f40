"""The map of host memory and the life of its records, against a dict."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NUMBERS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.just("record"), NUMBERS, st.integers(0, 4096), st.booleans())
    | st.tuples(st.sampled_from(["cache", "uncache", "withdraw", "forget"]), NUMBERS, st.just(0), st.just(False)),
    max_size=80,
)


@pytest.fixture(scope="session")
def module(extension):
    return extension("allocation_map")


class Record:
    def __init__(self, size, plain):
        self.size, self.plain, self.places = size, plain, 0


class Model:
    def __init__(self):
        self.map = {}
        self.lists = {}  # number -> records, in the order in which they were added

    def cached_bytes(self):
        return sum(record.size for records in self.lists.values() for record in records)

    def recorded_bytes(self):
        return sum(record.size for record in self.map.values() if not record.plain)


@settings(deadline=None)
@given(steps=STEPS)
def test_the_map_finds_what_a_dict_finds_and_adds_up_to_the_same_bytes(module, steps):
    real, model = module.Map(), Model()
    recorded_before, cached_before = real.totals()
    for step, number, size, plain in steps:
        on_lists = model.lists.setdefault(number, [])
        if step == "record":
            assert real.record(number, size, plain)
            model.map[number] = Record(size, plain)
        elif step == "forget":
            real.forget(number)
            model.map.pop(number, None)
        elif step == "cache" and number in model.map:
            real.cache(number)
            model.map[number].places += 1
            on_lists.append(model.map[number])
        elif step in ("uncache", "withdraw") and on_lists:
            taken = on_lists.pop()
            taken.places -= 1
            if step == "uncache":
                real.uncache(number)
            else:
                if model.map.get(number) is taken:
                    del model.map[number]
                assert real.withdraw(number) == (taken.places == 0)
        for one in range(6):
            record = model.map.get(one)
            assert real.find(one) == (record and (record.size, record.places, record.plain))
        assert real.totals() == (recorded_before + model.recorded_bytes(), cached_before + model.cached_bytes())
    for number, records in model.lists.items():  # so that the process's map is as before
        for _ in range(len(records)):
            real.withdraw(number)
    for number in range(6):
        real.forget(number)
    assert real.totals() == (recorded_before, cached_before)
