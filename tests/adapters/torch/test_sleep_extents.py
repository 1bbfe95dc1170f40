"""Where sleeping memory may be: a few extents that cover all of it."""

import importlib
import sys

from helpers.torch_stand_in import adapter_on_stand_in


def joined(monkeypatch, *arguments):
    adapter_on_stand_in(monkeypatch)
    monkeypatch.delitem(sys.modules, "allotment.torch._sleep_guard", raising=False)
    found = importlib.import_module("allotment.torch._sleep_guard")
    monkeypatch.delitem(sys.modules, "allotment.torch._sleep_guard")
    return found._joined(*arguments)


def test_the_closest_extents_become_one(monkeypatch):
    assert joined(monkeypatch, [(900, 1000), (0, 10), (100, 200), (210, 220)], 3) == [(0, 10), (100, 220), (900, 1000)]
    assert joined(monkeypatch, [(5, 7), (0, 2)], 2) == [(0, 2), (5, 7)]
