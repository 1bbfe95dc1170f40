"""Settings under PyTorch: PyTorch's variables, ours on top of them, and the switch for dense placement."""

import warnings
from dataclasses import replace

import pytest

from allotment import Settings
from allotment.errors import SettingsError
from helpers.bare_packages import import_bare

EXPANDABLE = "expandable_segments:True"


@pytest.fixture
def settings(monkeypatch):
    module = import_bare("allotment.torch._deep.settings")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "ALLOTMENT_CONF"):
        monkeypatch.delenv(name, raising=False)
    return lambda given=None, dense=False: module.deep_settings(given, "2.15", dense=dense)


def test_the_switch_chooses_dense_placement_and_keeps_what_else_is_set(settings, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5")
    found = settings("dense_grain:32", dense=True)
    assert (found.placement, found.dense_grain, found.per_process_memory_fraction) == ("dense", 32, 0.5)
    assert settings("placement:dense", dense=True).placement == "dense"


def test_expandable_segments_of_pytorchs_variables_are_not_used_and_one_line_says_so(settings, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = settings(dense=True)
    assert (found.placement, found.expandable_segments) == ("dense", False)
    text = "PyTorch's settings name expandable_segments, which has no meaning under placement:dense; it is not used"
    assert [str(warning.message) for warning in seen] == [text]


@pytest.mark.parametrize("given", ["placement:torch", Settings(), EXPANDABLE])
def test_settings_that_contradict_the_switch_are_refused(settings, given):
    with pytest.raises(SettingsError, match="placement:"):
        settings(given, dense=True)


@pytest.mark.parametrize("variable", ["placement:torch", EXPANDABLE])
def test_a_variable_of_ours_that_contradicts_the_switch_is_refused(settings, monkeypatch, variable):
    monkeypatch.setenv("ALLOTMENT_CONF", variable)
    with pytest.raises(SettingsError, match="placement:"):
        settings(dense=True)


def test_a_key_that_the_placement_of_our_variable_gives_no_meaning_is_refused(settings, monkeypatch):
    monkeypatch.setenv("ALLOTMENT_CONF", "placement:dense")
    with pytest.raises(SettingsError, match="expandable_segments must be left out"):
        settings(EXPANDABLE)


def test_a_device_that_cannot_have_dense_placement_keeps_what_else_is_set():
    module = import_bare("allotment.torch._deep.settings")
    dense = Settings.parse("placement:dense,dense_grain:32,dense_views:2,per_process_memory_fraction:0.5")

    found = module.with_pytorchs_placement(dense)

    assert replace(found, text="") == replace(Settings.parse("per_process_memory_fraction:0.5"), text="")
