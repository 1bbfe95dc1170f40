"""The table of rules: the rules of a version, and how a version is chosen."""

from dataclasses import fields

import pytest

import allotment
from allotment import _rules as rules
from allotment._devices.simulated.device import SimulatedDevice
from allotment._settings import Settings, parse_leniently
from allotment.errors import SettingsError
from helpers.engine import MIB, FallingAddresses, check, on_device


def test_every_rule_differs_between_some_versions():
    for field in fields(rules.Rules):
        values = {getattr(rules.rules_of(version), field.name) for version in rules.VERSIONS}
        assert len(values) > 1, f"no version changes {field.name}"


def test_a_version_has_what_the_one_before_had_unless_the_table_names_it():
    for older, newer in zip(rules.VERSIONS, rules.VERSIONS[1:], strict=False):
        before, after = rules.rules_of(older), rules.rules_of(newer)
        changed = {f.name for f in fields(rules.Rules) if getattr(before, f.name) != getattr(after, f.name)}
        assert changed == set(rules._CHANGES[newer]) | {"version"}


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("2.11.0+cu130", "2.11"),
        ("2.13.1", "2.13"),
        ("2.9.0", rules.OLDEST),
        ("2.99.0", rules.NEWEST),
        ("3.0", rules.NEWEST),
        ("main", rules.NEWEST),
    ],
)
def test_a_release_has_the_rules_of_the_newest_known_version_up_to_it(release, version):
    assert rules.nearest_version(release) == version


# --- choosing a version ---


def test_an_allocator_decides_as_the_newest_version_unless_its_settings_name_another():
    assert on_device().settings.compat == rules.NEWEST
    assert on_device(settings="compat:2.12").settings.compat == "2.12"
    assert on_device(settings="compat:newest").settings.compat == rules.NEWEST


def test_a_version_that_is_not_known_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"compat must be 2.11, .* or newest; '2.10' is not"):
        on_device(settings="compat:2.10")


def test_a_key_of_a_later_version_is_refused_by_its_version():
    with pytest.raises(SettingsError, match=r"throw_on_cudamalloc_oom must be left out: PyTorch has it since 2.12"):
        Settings.parse("throw_on_cudamalloc_oom:True,compat:2.11")
    settings, error = parse_leniently("throw_on_cudamalloc_oom:True", compat="2.11")
    assert str(error).startswith("Unrecognized key") and not settings.throw_on_cudamalloc_oom
    assert Settings.parse("compat:2.12,throw_on_cudamalloc_oom:True").throw_on_cudamalloc_oom


def test_the_version_changes_while_nothing_is_reserved_and_not_else():
    alloc = on_device(settings="compat:2.11")
    alloc.settings = "compat:2.15"
    address = alloc.malloc(MIB)
    with pytest.raises(SettingsError, match="compat can change while nothing is reserved"):
        alloc.settings = "compat:2.11"
    assert alloc.settings.compat == "2.15"
    alloc.settings = "expandable_segments:False"
    alloc.free(address)
    alloc.empty_cache()
    alloc.settings = "compat:2.11"
    assert alloc.settings.compat == "2.11"
    check(alloc)


def test_the_shared_allocator_begins_with_the_version_that_is_installed(monkeypatch):
    from allotment._allocators import current as shared

    monkeypatch.setattr(shared, "installed_version", lambda: "2.13")
    assert allotment.current("sim:1GiB#151").settings.compat == "2.13"
    assert allotment.current("sim:1GiB#152", settings="compat:2.12").settings.compat == "2.12"


# --- what it changes ---


@pytest.mark.parametrize(("version", "chosen"), [("2.11", 2), ("2.12", 0), ("2.13", 0), ("2.15", 0)])
def test_of_equal_free_segments_the_lowest_is_taken_or_the_oldest(version, chosen):
    alloc = allotment.Allocator(SimulatedDevice(1 << 30, script=FallingAddresses()), settings=f"compat:{version}")
    blocks = [alloc.malloc(30 * MIB) for _ in range(3)]
    for block in blocks:
        alloc.free(block)
    assert alloc.malloc(30 * MIB) == blocks[chosen]
    check(alloc)


def test_of_equal_pieces_the_first_made_is_taken_or_the_lowest():
    """Freed and split anew, the lower piece is the younger one."""

    def pieces(version):
        alloc = allotment.Allocator(SimulatedDevice(1 << 30), settings=f"compat:{version}")
        size = 128 * 1024
        first, second, third, _ = (alloc.malloc(size) for _ in range(4))
        alloc.free(first)
        alloc.free(second)
        low = alloc.malloc(size)  # the front of the merged block: a separate block
        assert low == first
        alloc.free(third)
        alloc.pools.malloc_at(size, third)  # whole, so it is the earlier block
        alloc.free(low)
        alloc.pools.malloc_at(size, low)
        alloc.pools.malloc_at(size, second)
        alloc.free(low)
        alloc.free(third)
        check(alloc)
        return alloc.malloc(size) == low

    assert pieces("2.13") and pieces("2.11")
    assert not pieces("2.12")


def test_statistics_have_what_the_version_counts():
    old, new = on_device(settings="compat:2.11").stats(), on_device().stats()
    assert "num_oom_rejections" not in old and new["num_oom_rejections"] == 0
    alloc = on_device()
    with alloc.pool() as pool:
        address = alloc.malloc(MIB)
    key = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
    assert alloc.stats()[key] == 2 * MIB
    alloc.free(address)
    pool.close()
    assert alloc.stats()[key] == 0, "it stays, with nothing in it"


def test_a_history_has_the_form_of_the_version():
    for version, named in (("2.11", False), ("2.12", True)):
        alloc = on_device(settings=f"compat:{version}")
        alloc.record_history()
        alloc.malloc(MIB)
        assert all(("pool_id" in entry) is named for entry in alloc.snapshot()["device_traces"][0])
    assert "max_round_threshold" not in on_device(settings="compat:2.12").snapshot()["allocator_settings"]
    assert on_device(settings="compat:2.13").snapshot()["allocator_settings"]["max_round_threshold"] == -1
