import re
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as running
from hypothesis import strategies as st

from allotment._settings import (
    RUNTIME_CHANGEABLE,
    UNLIMITED,
    Settings,
    from_environment,
    parse_leniently,
    parse_size,
    pytorch_caching_disabled,
    pytorch_environment,
    shortest_size,
)
from allotment.errors import SettingsError

unhurried = running(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine

MIB, GIB = 1 << 20, 1 << 30

VALID = {
    "": {},
    "max_split_size_mb:20": {"max_split_size": 20 * MIB},
    "max_split_size_mb:64,max_non_split_rounding_mb:24": {
        "max_split_size": 64 * MIB,
        "max_non_split_rounding": 24 * MIB,
    },
    "large_segment_size_mb:11": {"large_segment_size": 11 * MIB, "max_non_split_rounding": 11 * MIB},
    "max_split_size_mb:40,large_segment_size_mb:40": {
        "max_split_size": 40 * MIB,
        "large_segment_size": 40 * MIB,
        "max_non_split_rounding": 40 * MIB,
    },
    "garbage_collection_threshold:0.8": {"garbage_collection_threshold": 0.8},
    "garbage_collection_threshold:.5,": {"garbage_collection_threshold": 0.5},
    " expandable_segments : True , pinned_use_background_threads:True ": {
        "expandable_segments": True,
        "pinned_use_background_threads": True,
    },
    "backend:cudaMallocAsync": {"backend": "cudaMallocAsync"},
    "release_lock_on_cudamalloc:True": {"release_lock_on_device_malloc": True},
    "release_lock_on_hipmalloc:True": {"release_lock_on_device_malloc": True},
    "pinned_use_cuda_host_register:True": {"pinned_use_host_register": True},
    "pinned_use_hip_host_register:True": {"pinned_use_host_register": True},
    "pinned_num_register_threads:128": {"pinned_num_register_threads": 128},
    "pinned_reserve_segment_size_mb:3": {"pinned_reserve_segment_size": 3 * MIB},
    "graph_capture_record_stream_reuse:True": {"graph_capture_record_stream_reuse": True},
    "per_process_memory_fraction:0": {"per_process_memory_fraction": 0.0},
}


@pytest.mark.parametrize(("text", "changed"), VALID.items())
def test_valid_strings_mean_the_same_in_both_modes(text, changed):
    expected = replace(Settings(), text=text, **changed)
    assert Settings.parse(text) == expected
    assert parse_leniently(text) == (expected, None)


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ("8", (8,) * 16),
        ("1", (1,) * 16),
        ("[]", (0,) * 16),
        ("[>:4]", (0,) + (4,) * 15),
        ("[256:1,512:2,1024:4,>:8]", (1,) * 9 + (2, 4) + (8,) * 5),
        ("[1:4,4:2,16:8,64:1,256:2,>:4]", (4, 0, 2, 0, 8, 0, 1, 0, 2) + (4,) * 7),
        ("[64:8,128:2,256:2,512:2,1024:1,>:1]", (8,) * 7 + (2, 2, 2, 1) + (1,) * 5),
        ("[64:0,128:2]", (0,) * 7 + (2,) + (0,) * 8),
        ("[32768:2]", (2,) * 16),
        ("[1048576:2,>:4]", (2,) * 16),
    ],
)
def test_division_lists_fill_downwards_once_upwards_from_the_next_and_leave_gaps(value, table):
    assert Settings.parse(f"roundup_power2_divisions:{value}").roundup_power2_divisions == table
    assert parse_leniently(f"roundup_power2_divisions:{value}")[0].roundup_power2_divisions == table


# Text, what the strict mode says, and what PyTorch says (None: it accepts the string).
MALFORMED = [
    ("max_split_size_mb", "something is missing after 'max_split_size_mb'", "Index out of bounds in ConfigTokenizer"),
    ("max_split_size_mb:", "something is missing after ':'", "Index out of bounds in ConfigTokenizer"),
    ("max_split_size_mb=20", "something is missing after", "Index out of bounds in ConfigTokenizer"),
    (
        "max_split_size_mb:40;expandable_segments:True",
        "expected ',' after '40;expandable_segments', not ':'",
        "Index out of bounds in ConfigTokenizer",
    ),
    (":", "expected a key instead of ':'", "Index out of bounds in ConfigTokenizer"),
    (",", "expected a key instead of ','", "Index out of bounds in ConfigTokenizer"),
    ("max_split_size_mb,20", "expected ':' after 'max_split_size_mb', not ','", None),
    ("expandable_segments:True:backend:native", "expected ',' after 'True', not ':'", None),
    (
        "exp andable_segments:True",
        "unknown setting 'exp andable_segments'; did you mean expandable_segments?",
        None,
    ),
    ("expandable_segments:True,expandable_segments:False", "expandable_segments occurs twice", None),
    (
        "max_split_sise_mb:20",
        "unknown setting 'max_split_sise_mb'; did you mean max_split_size_mb?",
        "Unrecognized key 'max_split_sise_mb' in Accelerator allocator config.",
    ),
    (
        "foo:1",
        "unknown setting 'foo'; known: large_segment_size_mb, max_split_size_mb",
        "Unrecognized key 'foo' in Accelerator allocator config.",
    ),
    (
        "max_split_size_mb:19",
        "max_split_size_mb must be a whole number of MiB, at least large_segment_size_mb, which is 20; '19' is not",
        "CachingAllocator option max_split_size_mb too small, must be >= 20",
    ),
    (
        "max_split_size_mb:25,large_segment_size_mb:30",
        "at least large_segment_size_mb, which is 30; '25' is not",
        "CachingAllocator option max_split_size_mb too small, must be >= 30",
    ),
    (
        "max_non_split_rounding_mb:19",
        "max_non_split_rounding_mb must be",
        "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
    ),
    (
        "large_segment_size_mb:10",
        "large_segment_size_mb must be a whole number of MiB above 10; '10' is not",
        "CachingAllocator option large_segment_size_mb must be > 10 MB",
    ),
    ("max_split_size_mb:abc", "'abc' is not", "stoull"),
    ("max_split_size_mb:[40]", "'[40]' is not", "stoull"),
    ("max_split_size_mb:99999999999999999999", "'99999999999999999999' is not", "stoull"),
    ("max_split_size_mb:20abc", "'20abc' is not", None),
    ("max_split_size_mb:20.9", "'20.9' is not", None),
    ("max_split_size_mb:1e3", "'1e3' is not", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
    ("max_split_size_mb:2 0", "'2 0' is not", None),
    ("max_split_size_mb:-1", "'-1' is not", None),
    ("max_split_size_mb:17592186044416", "'17592186044416' is not", None),
    (
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold must be a number between 0 and 1, both excluded; '1.0' is not",
        "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    ),
    ("garbage_collection_threshold:0", "'0' is not", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
    ("garbage_collection_threshold:nan", "'nan' is not", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
    ("garbage_collection_threshold:half", "'half' is not", "stod"),
    ("garbage_collection_threshold:0.5x", "'0.5x' is not", None),
    (
        "expandable_segments:yes",
        "expandable_segments must be True or False; 'yes' is not",
        "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'yes'",
    ),
    (
        "max_split_size_mb:20,expandable_segments:1",
        "expandable_segments must be True or False; '1' is not",
        "Expected 'True' or 'False' at index 6 in ConfigTokenizer but got '1'",
    ),
    ("roundup_power2_divisions:0", "'0' is not", "For roundups, the divisions has to be power of 2"),
    ("roundup_power2_divisions:3", "'3' is not", "For roundups, the divisions has to be power of 2"),
    (
        "roundup_power2_divisions:[64:3]",
        "'[64:3]' is not",
        "For roundups, the divisions has to be power of 2 or 0 to disable roundup",
    ),
    ("roundup_power2_divisions:[0:2]", "'[0:2]' is not", "For roundups, the intervals have to be power of 2"),
    ("roundup_power2_divisions:[100:2]", "'[100:2]' is not", "For roundups, the intervals have to be power of 2"),
    (
        "roundup_power2_divisions:[64:8",
        "the list '[64:8' has no closing ']'",
        "Expected closing bracket ']' in ConfigTokenizer but reached end of config",
    ),
    ("roundup_power2_divisions:[64]", "something is missing after '64'", "Index out of bounds in ConfigTokenizer"),
    ("roundup_power2_divisions:[64,8]", "expected ':' after '64', not ','", None),
    ("backend:mine", "'mine' is not", "Unknown allocator backend, options are native and cudaMallocAsync"),
    (
        "pinned_num_register_threads:3",
        "pinned_num_register_threads must be a power of two, at most 128; '3' is not",
        "Number of register threads has to be power of 2, got 3",
    ),
    (
        "pinned_num_register_threads:256",
        "'256' is not",
        "Number of register threads should be less than or equal to 128, got 256",
    ),
    ("pinned_reserve_segment_size_mb:0", "'0' is not", "Pinned reserve segment size has to be greater than 0"),
    (
        "per_process_memory_fraction:1.5",
        "per_process_memory_fraction must be a number from 0 to 1; '1.5' is not",
        "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
    ),
]


@pytest.mark.parametrize(("text", "strictly", "leniently"), MALFORMED)
def test_malformed_strings_are_refused_with_the_reason(text, strictly, leniently):
    with pytest.raises(SettingsError, match=re.escape(strictly)) as caught:
        Settings.parse(text)
    assert caught.value.allowed
    assert caught.value.key is None or caught.value.key in text
    _, complaint = parse_leniently(text)
    assert (complaint and str(complaint)) == leniently


def test_error_carries_key_value_and_what_is_allowed():
    with pytest.raises(SettingsError) as caught:
        Settings.parse("expandable_segments:True,garbage_collection_threshold:2")
    error = caught.value
    assert (error.key, error.value) == ("garbage_collection_threshold", "2")
    assert error.allowed == "a number between 0 and 1, both excluded"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("max_split_size_mb,20", {"max_split_size": 20 * MIB}),
        ("max_split_size_mb:20abc", {"max_split_size": 20 * MIB}),
        ("max_split_size_mb:-1", {"max_split_size": UNLIMITED - (MIB - 1)}),
        ("exp andable_segments:Tr\tue", {"expandable_segments": True}),
        ("garbage_collection_threshold:0.5x", {"garbage_collection_threshold": 0.5}),
        ("roundup_power2_divisions:[64,8]", {"roundup_power2_divisions": (8,) * 7 + (0,) * 9}),
        (
            "expandable_segments:True:pinned_num_register_threads:4",
            {"expandable_segments": True, "pinned_num_register_threads": 4},
        ),
    ],
)
def test_lenient_mode_reads_sloppy_text_as_pytorch_does(text, changed):
    assert parse_leniently(text) == (replace(Settings(), text=text, **changed), None)


def test_missing_comma_in_a_list_glues_neighbours_together():
    _, complaint = parse_leniently("roundup_power2_divisions:[64:8 256:4]")
    assert str(complaint) == "For roundups, the divisions has to be power of 2 or 0 to disable roundup"
    assert parse_leniently("roundup_power2_divisions:[64:1 024:4]")[0].roundup_power2_divisions[6] == 1024


# -- What a string keeps and what it resets --------------------------------------------------------------------------


def test_a_string_resets_some_settings_and_keeps_the_others():
    named = Settings.parse(
        "max_split_size_mb:64,max_non_split_rounding_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:4,"
        "large_segment_size_mb:40,expandable_segments:True,pinned_use_background_threads:True,"
        "release_lock_on_cudamalloc:True,pinned_num_register_threads:8,graph_capture_record_stream_reuse:True"
    )
    kept = replace(
        Settings(),
        large_segment_size=40 * MIB,
        max_non_split_rounding=40 * MIB,
        expandable_segments=True,
        pinned_use_background_threads=True,
        release_lock_on_device_malloc=True,
        pinned_num_register_threads=8,
        graph_capture_record_stream_reuse=True,
    )
    assert Settings.parse("", named) == kept
    assert parse_leniently("", named) == (kept, None)


def test_large_segment_size_bounds_later_strings():
    large = Settings.parse("large_segment_size_mb:40")
    with pytest.raises(SettingsError, match="which is 40"):
        Settings.parse("max_split_size_mb:39", large)
    _, complaint = parse_leniently("max_split_size_mb:5", large)
    assert str(complaint) == "CachingAllocator option max_split_size_mb too small, must be >= 40"


def test_lenient_mode_applies_what_stood_before_the_fault():
    before = Settings.parse("max_split_size_mb:64,expandable_segments:True,release_lock_on_cudamalloc:True")
    text = (
        "pinned_num_register_threads:4,roundup_power2_divisions:4,max_split_size_mb:1,garbage_collection_threshold:0.5"
    )
    settings, complaint = parse_leniently(text, before)
    assert complaint is not None and complaint.key == "max_split_size_mb"
    assert settings == replace(before, max_split_size=UNLIMITED, roundup_power2_divisions=(4,) * 16, text=text), (
        "resets done, common keys before the fault applied, nothing behind it, no device key"
    )


def test_lenient_mode_keeps_common_keys_when_a_device_key_is_wrong():
    text = "release_lock_on_cudamalloc:True,pinned_num_register_threads:3,expandable_segments:True,backend:native"
    settings, complaint = parse_leniently(text)
    assert str(complaint) == "Number of register threads has to be power of 2, got 3"
    assert settings == Settings(release_lock_on_device_malloc=True, expandable_segments=True, text=text)


def test_lenient_mode_keeps_the_entries_of_a_list_before_its_fault():
    settings, complaint = parse_leniently("roundup_power2_divisions:[2:4,100:2]")
    assert complaint is not None
    assert settings.roundup_power2_divisions == (4, 4) + (0,) * 14


def test_backend_is_chosen_at_the_start_and_cannot_change():
    first = Settings.parse("backend:cudaMallocAsync")
    assert Settings.parse("backend:cudaMallocAsync", first).backend == "cudaMallocAsync"
    with pytest.raises(SettingsError, match="the same as at the start; 'native' is not"):
        Settings.parse("backend:native", first)
    settings, complaint = parse_leniently("backend:cudaMallocAsync", Settings())
    assert str(complaint).startswith("Allocator backend parsed at runtime != allocator backend parsed at load time, ")
    assert settings.backend == "native"


def test_runtime_changeable_names_all_settings_but_those_used_once():
    used_once = {"backend", "compat", "dense_start", "monitor", "nvtx", "placement"}
    used_once |= {"per_process_memory_fraction", "pinned_reserve_segment_size", "shareable"}
    assert {field.name for field in fields(Settings)} - {"text"} - used_once == RUNTIME_CHANGEABLE


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        Settings().expandable_segments = True


# -- Forms and sources -----------------------------------------------------------------------------------------------


def test_pytorch_dict_equals_a_recorded_one():
    text = "max_split_size_mb:100,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    assert Settings.parse(text, compat="2.11").as_pytorch_dict() == {
        "PYTORCH_CUDA_ALLOC_CONF": text,
        "max_split_size": 104857600,
        "garbage_collection_threshold": 0.8,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {
            **{"1": 1, "2": 1, "4": 1, "8": 1, "16": 1, "32": 1, "64": 1, "128": 1, "256": 1, "512": 2, "1024": 4},
            **{"2048": 8, "4096": 8, "8192": 8, "16384": 8, "32768": 8},
        },
    }
    assert Settings().as_pytorch_dict()["max_split_size"] == -1


def test_own_variable_is_read_strictly_and_named_in_the_error():
    assert from_environment({}) == Settings()
    assert from_environment({"ALLOTMENT_CONF": "expandable_segments:True"}).expandable_segments
    assert from_environment({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}) == Settings()
    with pytest.raises(SettingsError, match=r"^ALLOTMENT_CONF: max_split_size_mb must be") as caught:
        from_environment({"ALLOTMENT_CONF": "max_split_size_mb:1"})
    assert (caught.value.key, caught.value.value) == ("max_split_size_mb", "1")


def test_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("ALLOTMENT_CONF", "expandable_segments:True")
    assert from_environment().expandable_segments


def test_only_the_first_existing_pytorch_variable_counts():
    cuda = {"PYTORCH_CUDA_ALLOC_CONF": ""}
    hip = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}
    common = {"PYTORCH_ALLOC_CONF": "max_split_size_mb,64"}
    assert pytorch_environment({}) == (Settings(), None)
    assert pytorch_environment(common)[0].max_split_size == 64 * MIB
    assert pytorch_environment(common | hip)[0] == Settings(expandable_segments=True, text="expandable_segments:True")
    assert pytorch_environment(common | hip | cuda)[0] == Settings()
    assert str(pytorch_environment({"PYTORCH_ALLOC_CONF": "expandable_segments:True,foo:1"})[1]).startswith(
        "Unrecognized key 'foo'"
    )


def test_pytorch_caching_is_disabled_by_one():
    assert not pytorch_caching_disabled({})
    assert not pytorch_caching_disabled({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"})
    assert pytorch_caching_disabled({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert pytorch_caching_disabled({"PYTORCH_NO_HIP_MEMORY_CACHING": "1"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * GIB),
        ("80 GiB", 80 * GIB),
        ("512mib", 512 * MIB),
        ("1048576", 1048576),
        ("85899345920", 80 * GIB),
        ("7B", 7),
        ("80B", 80),
        ("1.5GiB", 3 * GIB // 2),
        ("0.3KiB", 307),
        ("2TiB", 2 << 40),
        ("20G", 20 * GIB),
        ("20GB", 20 * 10**9),
        ("1.5mb", 1_500_000),
        ("0", 0),
        (4096, 4096),
        (80, 80),
        (np.int64(80), 80),
    ],
)
def test_sizes_are_read_in_the_units_that_people_write(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "20X",
        "20GiBB",
        "-1",
        "-1GiB",
        "1.5",
        "1.5B",
        "1e9",
        "0x10",
        "1 2",
        "9" * 5000,
        "20000PiB",
        -1,
        True,
        1.5,
    ],
)
def test_what_is_not_a_size_is_refused_with_the_units(text):
    with pytest.raises(SettingsError, match=r"invalid size: .*; write .* B, KiB, MiB, GiB, TiB, PiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["80", " 80 ", "1", "1024", "1048575"])
def test_a_small_size_without_a_unit_is_refused_with_the_sizes_that_may_be_meant(text):
    number = text.strip()
    with pytest.raises(SettingsError, match=rf"no unit.* write {number}GiB or {number}MiB, or {number}B for bytes$"):
        parse_size(text)


@unhurried
@given(st.integers(min_value=0, max_value=UNLIMITED))
def test_the_shortest_form_of_a_size_is_read_back(size):
    assert parse_size(shortest_size(size)) == size


# -- Any string ------------------------------------------------------------------------------------------------------

SWITCHES = {
    "expandable_segments": "expandable_segments",
    "pinned_use_background_threads": "pinned_use_background_threads",
    "release_lock_on_cudamalloc": "release_lock_on_device_malloc",
    "pinned_use_cuda_host_register": "pinned_use_host_register",
    "graph_capture_record_stream_reuse": "graph_capture_record_stream_reuse",
}
blanks = st.sampled_from(["", " ", "\t"])


@st.composite
def rendered_settings(draw):
    """Draw settings and a string that asks for them, keys in any order and with blanks between tokens."""
    settings, parts = {}, []
    large = draw(st.none() | st.integers(11, 1000))
    if large is not None:
        settings["large_segment_size"] = settings["max_non_split_rounding"] = large * MIB
        parts.append(("large_segment_size_mb", str(large)))
    for name in ("max_split_size", "max_non_split_rounding"):
        if draw(st.booleans()):
            mebibytes = draw(st.integers(large or 20, UNLIMITED // MIB))
            settings[name] = mebibytes * MIB
            parts.append((f"{name}_mb", str(mebibytes)))
    for key, name in SWITCHES.items():
        if draw(st.booleans()):
            settings[name] = draw(st.booleans())
            parts.append((key, str(settings[name])))
    if draw(st.booleans()):
        threshold = draw(st.floats(0, 1, exclude_min=True, exclude_max=True))
        settings["garbage_collection_threshold"] = threshold
        parts.append(("garbage_collection_threshold", repr(threshold)))
    if draw(st.booleans()):
        powers = st.integers(0, 10).map(lambda exponent: 1 << exponent)
        table = draw(st.lists(powers | st.just(0), min_size=16, max_size=16))
        settings["roundup_power2_divisions"] = tuple(table)
        entries = ",".join(f"{1 << interval}:{divisions}" for interval, divisions in enumerate(table))
        parts.append(("roundup_power2_divisions", f"[{entries}]"))
    blank = draw(blanks)
    pairs = [f"{blank}{key}{blank}:{blank}{value}{blank}" for key, value in draw(st.permutations(parts))]
    text = ",".join(pairs)
    return Settings(**settings, text=text), text


@unhurried
@given(rendered_settings())
def test_rendered_settings_round_trip_in_both_modes(case):
    settings, text = case
    assert Settings.parse(text) == settings
    assert parse_leniently(text) == (settings, None)


KEYS_AND_VALUES = [
    *SWITCHES, "max_split_size_mb", "large_segment_size_mb", "garbage_collection_threshold", "backend",
    "roundup_power2_divisions", "pinned_num_register_threads", "per_process_memory_fraction",
    "True", "False", "native", "1", "64", "-1", "0.5", ">", "x", "\u0130nf", "\u0663", " ",
]  # fmt: skip
likely_text = st.lists(st.sampled_from([*KEYS_AND_VALUES, ",", ":", "[", "]", ":", ","]), max_size=20).map("".join)


@unhurried
@given(st.text() | likely_text)
@example("max_split_size_mb:" + "9" * 5000)
@example("per_process_memory_fraction:" + "9" * 5000)
@example("garbage_collection_threshold:\u0130nf")
@example("expandable_segments:\u00a0True")
@example("roundup_power2_divisions:[:,]")
def test_no_string_raises_anything_but_settings_errors(text):
    settings, complaint = parse_leniently(text)
    assert settings.text == text
    try:
        strictly = Settings.parse(text)
    except SettingsError as error:
        assert str(error)
    else:
        assert (strictly, None) == (settings, complaint), "what is strictly right means the same to PyTorch"


@unhurried
@given(st.text() | st.from_regex(r"[0-9]{1,30}(\.[0-9]{1,30})? ?[KMG]?i?B?"))
def test_no_text_makes_parse_size_raise_anything_but_settings_errors(text):
    try:
        assert 0 <= parse_size(text) <= UNLIMITED
    except SettingsError as error:
        assert error.allowed
