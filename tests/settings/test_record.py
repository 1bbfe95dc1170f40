"""The record validates its values: it accepts none that no engine supports."""

import pickle
from dataclasses import replace

import pytest

import allotment
from allotment import Settings
from allotment._settings import DEFAULTS, KEYS, UNLIMITED, parse_leniently, settings_stated
from allotment._settings.record import text_in_force
from allotment.errors import SettingsError

MIB = 1 << 20

REFUSED = [
    {"large_segment_size": 32},
    {"large_segment_size": 0},
    {"large_segment_size": 10 * MIB},
    {"large_segment_size": 20 * MIB + 512},
    {"large_segment_size": -20 * MIB},
    {"large_segment_size": 1 << 64},
    {"large_segment_size": 20.0 * MIB},
    {"large_segment_size": "20MiB"},
    {"large_segment_size": None},
    {"large_segment_size": True},
    {"max_split_size": -1},
    {"max_split_size": 2**64},
    {"max_non_split_rounding": 1},
    {"roundup_power2_divisions": ()},
    {"roundup_power2_divisions": (0,) * 15},
    {"roundup_power2_divisions": (0,) * 17},
    {"roundup_power2_divisions": (3,) * 16},
    {"roundup_power2_divisions": (-2,) * 16},
    {"roundup_power2_divisions": (1 << 64,) * 16},
    {"roundup_power2_divisions": (2.0,) * 16},
    {"roundup_power2_divisions": [0] * 16},
    {"roundup_power2_divisions": 8},
    {"garbage_collection_threshold": float("nan")},
    {"garbage_collection_threshold": float("inf")},
    {"garbage_collection_threshold": 1.0},
    {"garbage_collection_threshold": -0.5},
    {"per_process_memory_fraction": float("nan")},
    {"per_process_memory_fraction": 1.5},
    {"per_process_memory_fraction": "half"},
    {"expandable_segments": 1},
    {"expandable_segments": "True"},
    {"backend": "mine"},
    {"backend": None},
    {"pinned_num_register_threads": 3},
    {"pinned_num_register_threads": True},
    {"pinned_reserve_segment_size": -MIB},
    {"text": None},
]


@pytest.mark.parametrize("values", REFUSED, ids=str)
def test_a_record_with_a_value_out_of_range_cannot_be_made(values):
    (name,) = values
    with pytest.raises(SettingsError, match=rf"^{name} must be ") as caught:
        Settings(**values)
    assert caught.value.key == (KEYS[name].names[0] if name in KEYS else name)
    with pytest.raises(SettingsError):
        replace(Settings(), **values)


def test_the_defaults_and_the_ends_of_the_ranges_pass():
    assert Settings(**DEFAULTS) == Settings()
    Settings(
        max_split_size=UNLIMITED - (MIB - 1),
        max_non_split_rounding=UNLIMITED,
        large_segment_size=11 * MIB,
        roundup_power2_divisions=(1 << 63, *(0,) * 15),
        garbage_collection_threshold=1e-300,
        per_process_memory_fraction=0,
    )


def test_a_record_survives_pickling():
    settings = Settings.parse("expandable_segments:True,roundup_power2_divisions:[64:8,>:2]")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_record_that_was_put_together_otherwise_passes_the_gate_where_it_is_used():
    forged = Settings()
    object.__setattr__(forged, "large_segment_size", 32)
    with pytest.raises(SettingsError, match="large_segment_size must be"):
        allotment.Allocator("sim:1GiB", settings=forged)
    with pytest.raises(SettingsError, match="large_segment_size must be"):
        allotment.Allocator("sim:1GiB", settings=pickle.loads(pickle.dumps(forged)))
    with pytest.raises(SettingsError, match="lack a value"):
        allotment.Allocator("sim:1GiB", settings=Settings.__new__(Settings))


@pytest.mark.parametrize("text", [None, 5, b"expandable_segments:True", ["expandable_segments:True"]])
def test_what_is_neither_text_nor_record_is_refused(text):
    with pytest.raises(TypeError, match="settings must be a text or a Settings, not"):
        Settings.parse(text)
    if text is not None:
        with pytest.raises(TypeError, match="settings must be a text or a Settings, not"):
            allotment.Allocator("sim:1GiB", settings=text)


def test_what_a_snapshot_states_is_what_made_it():
    text = "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:[64:8,>:2]"
    settings = Settings.parse(text)
    assert settings_stated(settings.as_pytorch_dict()) == settings
    assert settings_stated({}) == Settings()
    assert settings_stated({"max_split_size": -1, "expandable_segments": True}) == Settings(expandable_segments=True)


@pytest.mark.parametrize(
    "stated",
    [
        {"max_split_size": 5},
        {"max_split_size": None},
        {"garbage_collection_threshold": float("nan")},
        {"expandable_segments": 2},
        {"roundup_power2_divisions": {}},
        {"roundup_power2_divisions": 4},
        {"roundup_power2_divisions": {str(1 << i): 3 for i in range(16)}},
    ],
    ids=str,
)
def test_what_no_settings_can_be_is_refused_in_a_snapshot_too(stated):
    with pytest.raises(SettingsError):
        settings_stated(stated)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"roundup_power2_divisions": (1 << power,) * 16} for power in (1, 8, 31, 32, 43, 54, 55, 60, 63)]
    + [{"large_segment_size": size} for size in (11 * MIB, 21 * MIB, 1 << 40, 1 << 60, 1 << 63, UNLIMITED - (MIB - 1))]
    + [{"max_split_size": size} for size in (0, MIB, 1 << 40)],
    ids=str,
)
def test_the_engine_works_with_the_ends_of_the_ranges(changes, expandable):
    allocator = allotment.Allocator("sim:1GiB", settings=Settings(expandable_segments=expandable, **changes))
    for size in (1, 512, 513, MIB, MIB + 1, 5 * MIB, 10 * MIB, 30 * MIB, (1 << 30) - 1, 1 << 59):
        try:
            address = allocator.malloc(size)
        except allotment.OutOfMemoryError:
            address = 0
        allocator.inspection.check_invariants()
        allocator.free(address)
        allocator.inspection.check_invariants()
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.parametrize(
    ("text", "then", "stated"),
    [
        ("", "expandable_segments:True", "expandable_segments:True"),
        ("placement:dense,dense_grain:32", "", "placement:dense,dense_grain:32"),
        (
            "placement:dense,dense_wait_reuse:off,dense_share_streams:False,dense_start:2MiB",
            "roundup_power2_divisions:[256:1,>:4]",
            "placement:dense,dense_wait_reuse:off,dense_share_streams:False,dense_start:2MiB,"
            "roundup_power2_divisions:[256:1,>:4]",
        ),
    ],
)
def test_the_text_of_another_placement_says_all_of_it(text: str, then: str, stated: str) -> None:
    settings = Settings.parse(text)
    if then:
        settings = Settings.parse(then, settings)
    assert text_in_force(settings) == stated
    assert replace(Settings.parse(stated), text=settings.text) == settings


def test_what_means_nothing_to_a_placement_is_not_in_its_text() -> None:
    of_pytorch, _ = parse_leniently("expandable_segments:True,garbage_collection_threshold:0.5")
    settings = replace(of_pytorch, placement="dense", expandable_segments=False)
    assert text_in_force(settings) == "placement:dense,garbage_collection_threshold:0.5"
