"""The ring of the trace, against a list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

REPORT, RESIZE, CLEAR = "report", "resize", "clear"
STEPS = st.lists(
    st.tuples(st.just(REPORT), st.integers(1, 60))
    | st.tuples(st.just(RESIZE), st.integers(1, 40))
    | st.tuples(st.just(CLEAR), st.just(0)),
    max_size=30,
)


@pytest.fixture(scope="session")
def module(extension):
    return extension("trace")


class Model:
    """The newest records, at most as many as the ring holds."""

    def __init__(self):
        self.records, self.most = [], 1

    def report(self, record):
        self.records = [*self.records, record][-self.most :]

    def resize(self, most):
        self.most = most
        self.records = self.records[-most:]

    def clear(self):
        self.records = []

    def content(self):
        return self.records


@settings(deadline=None)
@given(steps=STEPS)
def test_the_ring_holds_the_newest_records_of_a_list(module, steps):
    ring, model, count = module.Ring(), Model(), 0
    ring.listen(True, 1)
    for step, number in steps:
        if step == REPORT:
            for _ in range(number):
                count += 1
                ring.report(count % 5, count)
                model.report((count % 5, count))
        elif step == RESIZE:
            ring.listen(True, number)
            model.resize(number)
        else:
            ring.clear()
            model.clear()
        assert ring.content() == model.content()


@given(most=st.integers(1, 5000), reports=st.integers(0, 6000))
@settings(deadline=None, max_examples=20)
def test_a_ring_that_is_not_changed_keeps_the_newest(module, most, reports):
    ring = module.Ring()
    ring.listen(True, most)
    for number in range(reports):
        ring.report(0, number)
    assert ring.content() == [(0, number) for number in range(max(0, reports - most), reports)]


@given(skipped=st.sets(st.integers(0, 8)), reports=st.lists(st.integers(0, 8), max_size=50))
@settings(deadline=None)
def test_actions_to_skip_are_not_kept_but_the_tracker_hears_of_them(module, skipped, reports):
    ring = module.Ring()
    ring.listen(True, 100)
    ring.track(True)
    ring.skip(sum(1 << action for action in skipped))
    for number, action in enumerate(reports):
        ring.report(action, number)
    assert ring.content() == [(action, number) for number, action in enumerate(reports) if action not in skipped]
    assert ring.received == list(range(len(reports)))


def test_without_a_listener_nothing_is_kept(module):
    ring = module.Ring()
    ring.report(0, 1)
    assert not ring.on and ring.content() == []
    ring.listen(True, 4)
    assert ring.on
    ring.listen(False, 4)
    ring.report(0, 2)
    assert not ring.on and ring.content() == []


def test_a_tracker_without_a_history_keeps_nothing(module):
    ring = module.Ring()
    ring.track(True)
    ring.report(0, 1)
    ring.track(False)
    ring.report(0, 2)
    assert ring.received == [1] and ring.content() == []
