"""The table of keys: complete, in agreement with its page, and the only place to add a key."""

from dataclasses import dataclass, field, fields

import pytest

import allotment
from allotment._settings import DEFAULTS, KEYS, Settings, parse_leniently
from allotment._settings.keys import Change, Key
from allotment._settings.parser import Parser
from allotment._settings.values import Choice
from allotment.errors import SettingsError
from helpers import settings_page


def test_every_setting_has_a_key_and_no_two_share_a_name():
    assert set(KEYS) == {field.name for field in fields(Settings)} - {"text"}
    names = [name for key in KEYS.values() for name in key.names]
    assert len(names) == len(set(names))


def test_the_page_of_settings_is_made_from_the_table():
    assert settings_page.PAGE.read_text() == settings_page.page(), "run tests/helpers/settings_page.py --write"


def test_settings_can_be_read_from_a_text_by_anybody():
    assert allotment.Settings.parse("expandable_segments:True").expandable_segments


def test_one_entry_is_all_that_a_new_key_needs():
    kept = Key(
        names=("kept_by",),
        kind=Choice(("us", "them")),
        values="us or them",
        does="Says who keeps it.",
        torch=None,
        change=Change.FIXED,
    )

    @dataclass(frozen=True)
    class Longer(Settings):
        kept_by: str = field(default="us", metadata={"key": kept})

    keys, defaults = {**KEYS, "kept_by": kept}, {**DEFAULTS, "kept_by": "us"}
    strict = Parser(keys, defaults, None, strict=True)
    strict.run("kept_by:them,expandable_segments:True")
    assert Longer(**strict.values) == Longer(
        kept_by="them", expandable_segments=True, text="kept_by:them,expandable_segments:True"
    )
    with pytest.raises(SettingsError, match="kept_by must be us or them; 'others' is not"):
        Parser(keys, defaults, None, strict=True).run("kept_by:others")
    with pytest.raises(SettingsError, match="kept_by must be us or them; 'us' is not"):
        Parser(keys, defaults, strict.values, strict=True).run("kept_by:us")
    with pytest.raises(SettingsError, match="Unrecognized key 'kept_by'"):
        Parser(keys, defaults, None, strict=False).run("kept_by:us")


def test_a_key_without_meaning_to_the_chosen_placement_is_refused_where_it_is_named():
    placement = Key(names=("placement",), kind=Choice(("torch", "other")), values="torch or other", does="", torch=None)
    keys, defaults = {**KEYS, "placement": placement}, {**DEFAULTS, "placement": "torch"}
    for text in ("placement:other,max_split_size_mb:64", "expandable_segments:True,placement:other"):
        with pytest.raises(SettingsError, match="must be left out: placement:other does not use it"):
            Parser(keys, defaults, None, strict=True).run(text)
    before = Parser(keys, defaults, None, strict=True)
    before.run("expandable_segments:True")
    after = Parser(keys, defaults, before.values, strict=True)
    after.run("placement:other")
    assert after.values["expandable_segments"], "it stays, and is not asked for anew"


def test_pytorch_reads_no_key_of_ours():
    for key in KEYS.values():
        for name in key.names if key.torch is None else ():
            assert str(parse_leniently(f"{name}:1")[1]).startswith(f"Unrecognized key '{name}'")
