"""Help where people look: `help(...)`, `inspect.signature(...)` and `repr(...)` of everything public.

How many public names there are, and how many without a docstring:

    python -m pytest tests/test_help.py -s -k counted
"""

import inspect
import pydoc

import pytest

import allotment
from allotment.devices import Device
from helpers.public_names import is_ours, public_modules, public_names


@pytest.fixture(scope="module")
def names():
    with public_modules() as modules:
        yield [name for module in modules for name in public_names(module)]


def test_every_public_name_has_a_docstring_and_they_are_counted(names):
    missing = [one.name for one in names if not one.doc.strip()]
    print(f"\n{len(names)} public names, {len(missing)} without a docstring")
    assert missing == []


def test_every_public_function_shows_its_signature(names):
    without = []
    for one in names:
        if callable(one.value) and not inspect.isclass(one.value):
            try:
                inspect.signature(one.value)
            except ValueError:
                without.append(one.name)
    assert without == []


def test_every_public_class_that_can_be_called_shows_its_signature(names):
    without = []
    for one in names:
        if one.value is Device:  # only its subclasses are made
            continue
        if inspect.isclass(one.value) and is_ours(one.value) and not issubclass(one.value, Exception):
            try:
                inspect.signature(one.value)
            except ValueError:
                without.append(one.name)
    assert without == []


def test_help_for_malloc_says_what_it_takes_and_what_it_raises():
    text = pydoc.render_doc(allotment.Allocator.malloc, renderer=pydoc.plaintext)
    assert "malloc(self, /, size, stream=None)" in text
    for word in ("size", "stream", "OutOfMemoryError", "SizeError", "threads"):
        assert word in text.split("\n", 3)[3], word
