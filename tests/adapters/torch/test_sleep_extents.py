"""Where sleeping memory may be: a few extents that cover all of it, of allocators that may come at any time."""

import importlib
import sys

from helpers.torch_stand_in import adapter_on_stand_in


def sleep_guard(monkeypatch):
    adapter_on_stand_in(monkeypatch)
    monkeypatch.delitem(sys.modules, "allotment.torch._sleep_guard", raising=False)
    found = importlib.import_module("allotment.torch._sleep_guard")
    monkeypatch.delitem(sys.modules, "allotment.torch._sleep_guard")
    return found


def test_the_closest_extents_become_one(monkeypatch):
    joined = sleep_guard(monkeypatch)._joined
    assert joined([(900, 1000), (0, 10), (100, 200), (210, 220)], 3) == [(0, 10), (100, 220), (900, 1000)]
    assert joined([(5, 7), (0, 2)], 2) == [(0, 2), (5, 7)]


def test_an_allocator_may_come_while_another_one_is_asked(monkeypatch):
    guard = sleep_guard(monkeypatch)._Guard()
    asked = []

    class Sleeper:
        def __init__(self, meanwhile):
            self.sleep, self.meanwhile = self, meanwhile

        def _tell(self, on_sleep):
            self.on_sleep = on_sleep

        def _ranges(self):
            asked.append(self)
            self.meanwhile()
            return []

    second = Sleeper(lambda: None)
    first = Sleeper(lambda: guard.watch(second))
    guard.watch(first)
    first.on_sleep()
    assert asked == [first]
    second.on_sleep()
    assert {*asked[1:]} == {first, second}
