"""The functions of `torch.cuda.memory` over our allocators, on a stand-in for PyTorch and simulated devices."""

from __future__ import annotations

import gc
import inspect
import pickle
import sys

import pytest

from allotment._texts import PYTORCH_SUMMARY, memory_summary
from allotment.errors import UnsupportedError
from helpers.engine import MIB
from helpers.torch_stand_in import PASSED_ON, REFUSED, adapter_on_stand_in


@pytest.fixture
def stand(monkeypatch):
    """PyTorch with two GPUs, the first in use; our allocators of both; and the adapter's modules on top of them."""
    yield adapter_on_stand_in(monkeypatch)
    gc.collect()  # closes pools that a test dropped, while their allocators exist


# Figures.


def test_statistics_are_the_allocators_flat_and_sorted(stand):
    stand.allocators[0].malloc(3 * MIB)
    stats = stand.memory.memory_stats()
    assert dict(stats) == stand.allocators[0].stats()
    assert list(stats) == sorted(stats)
    assert stand.memory.memory_stats_as_nested_dict() == stand.allocators[0].inspection.nested_stats()


@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0"])
def test_a_device_can_be_given_in_every_form_that_pytorch_takes(stand, device):
    stand.allocators[0].malloc(3 * MIB)
    assert stand.memory.memory_allocated(device) == 3 * MIB
    if isinstance(device, str):
        assert stand.memory.memory_allocated(stand.torch.device(device)) == 3 * MIB


def test_none_is_the_current_device(stand):
    stand.world.current = 1
    stand.allocators[1].malloc(MIB)
    assert stand.memory.memory_allocated() == MIB


def test_the_four_figures_are_those_of_the_statistics(stand):
    allocator = stand.allocators[0]
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(3 * MIB)
    stats = allocator.stats()
    assert stand.memory.memory_allocated() == stats["allocated_bytes.all.current"] == 3 * MIB
    assert stand.memory.max_memory_allocated() == stats["allocated_bytes.all.peak"] == 30 * MIB
    assert stand.memory.memory_reserved() == stats["reserved_bytes.all.current"]
    assert stand.memory.max_memory_reserved() == stats["reserved_bytes.all.peak"]


def test_before_pytorch_is_initialized_there_are_no_figures_and_no_allocator(stand):
    stand.world.initialized = False
    assert stand.memory.memory_stats() == {} == stand.memory.memory_stats_as_nested_dict()
    assert stand.memory.memory_allocated() == 0 == stand.memory.max_memory_reserved()
    assert stand.asked == []


def test_former_names_warn_and_give_the_same(stand):
    stand.allocators[0].malloc(MIB)
    with pytest.warns(FutureWarning, match="`torch.cuda.memory_cached` has been renamed to `torch.cuda.memory_res"):
        assert stand.memory.memory_cached() == stand.memory.memory_reserved() > 0
    with pytest.warns(FutureWarning, match="`torch.cuda.max_memory_cached` has been renamed"):
        assert stand.memory.max_memory_cached() == stand.memory.max_memory_reserved()


@pytest.mark.parametrize("name", ["reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_peaks_start_again_at_what_is_in_use(stand, name):
    allocator = stand.allocators[0]
    allocator.free(allocator.malloc(30 * MIB))
    getattr(stand.memory, name)()
    assert stand.memory.max_memory_allocated() == 0


def test_resetting_one_maximum_warns_that_all_are_reset(stand):
    with pytest.warns(FutureWarning, match=r"reset_max_memory_allocated now calls .* resets /all/ peak memory stats"):
        stand.memory.reset_max_memory_allocated()
    with pytest.warns(FutureWarning, match="reset_max_memory_cached now calls"):
        stand.memory.reset_max_memory_cached(0)


def test_accumulated_figures_start_again_at_nothing(stand):
    stand.allocators[0].malloc(MIB)
    stand.memory.reset_accumulated_memory_stats("cuda:0")
    stats = stand.memory.memory_stats()
    assert stats["allocation.all.allocated"] == 0 and stats["allocation.all.current"] == 1


def test_the_summary_has_pytorchs_words(stand):
    stand.allocators[0].malloc(3 * MIB)
    expected = memory_summary(stand.allocators[0].stats(), 0, words=PYTORCH_SUMMARY)
    assert stand.memory.memory_summary() == expected
    assert "PyTorch CUDA memory summary, device ID 0" in expected
    assert len(stand.memory.memory_summary("cuda", abbreviated=True)) < len(expected)


# Devices that are not there, or not in use.


@pytest.mark.parametrize("name", ["memory_stats", "memory_allocated", "reset_peak_memory_stats",
                                  "reset_accumulated_memory_stats", "get_per_process_memory_fraction"])  # fmt: skip
@pytest.mark.parametrize("device", [2, -1, "cuda:7"])
def test_a_device_that_does_not_exist_is_refused_in_pytorchs_words(stand, name, device):
    what = "Allocator not initialized for device" if "fraction" in name else "Invalid device argument"
    with pytest.raises(RuntimeError, match=what + r" -?\d: did you call init\?"):
        getattr(stand.memory, name)(device)


def test_resetting_before_initialization_is_refused(stand):
    stand.world.initialized = False
    with pytest.raises(RuntimeError, match="did you call init"):
        stand.memory.reset_peak_memory_stats(0)


def test_a_device_of_another_kind_is_refused(stand):
    with pytest.raises(ValueError, match="Expected a cuda device"):
        stand.memory.memory_stats("cpu")


def test_asking_about_an_unused_device_makes_no_allocator_there(stand):
    figures = stand.memory.memory_stats(1)
    assert figures.keys() == stand.allocators[0].stats().keys()
    assert {key for key, value in figures.items() if value} == {"max_split_size"}
    stand.memory.reset_peak_memory_stats(1)
    stand.memory.reset_accumulated_memory_stats(1)
    assert stand.memory.get_per_process_memory_fraction(1) == 1.0
    stand.memory._snapshot()
    stand.memory.record_history(context=None)
    assert 1 not in stand.asked


def test_a_device_with_a_context_is_asked_itself(stand):
    stand.world.with_context.add(1)
    stand.allocators[1].malloc(MIB)
    assert stand.memory.memory_allocated(1) == MIB


# Limits and settings.


def test_a_fraction_is_set_and_read(stand):
    stand.memory.set_per_process_memory_fraction(0.5)
    assert stand.allocators[0].limits.memory_fraction == 0.5 == stand.memory.get_per_process_memory_fraction("cuda:0")
    assert stand.memory.get_per_process_memory_fraction(1) == 1.0


@pytest.mark.parametrize(
    ("fraction", "device", "error", "words"),
    [
        (1, None, TypeError, "Invalid type for fraction argument, must be `float`"),
        (1.5, None, ValueError, r"Invalid fraction value: 1.5. Allowed range: 0~1"),
        (-0.5, 0, ValueError, "Invalid fraction value: -0.5"),
        (0.5, 9, RuntimeError, "Allocator not initialized for device 9"),
        (0.5, "cuda", ValueError, "specified index"),
    ],
)
def test_a_bad_fraction_is_refused_in_pytorchs_words(stand, fraction, device, error, words):
    with pytest.raises(error, match=words):
        stand.memory.set_per_process_memory_fraction(fraction, device)
    assert stand.allocators[0].limits.memory_fraction == 1.0


def test_caching_is_switched_on_used_devices(stand):
    stand.memory.caching_allocator_enable(False)
    assert [allocator.pools.caching for allocator in stand.allocators] == [False, True]
    stand.memory.caching_allocator_enable()
    assert stand.allocators[0].pools.caching


def test_caching_is_off_inside_a_block_and_then_as_before(stand):
    with stand.memory.caching_allocator_disabled():
        assert not stand.allocators[0].pools.caching
        with stand.memory.caching_allocator_disabled():
            pass
        assert not stand.allocators[0].pools.caching
    assert stand.allocators[0].pools.caching


def test_caching_that_pytorchs_variable_forbids_stays_off(stand, monkeypatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    stand.memory.caching_allocator_enable(True)
    assert not stand.allocators[0].pools.caching
    assert not stand.replacements.is_caching()


def test_before_pytorch_is_initialized_caching_is_not_changed(stand):
    stand.world.initialized = False
    stand.memory.caching_allocator_enable(False)
    assert stand.replacements.is_caching()


def test_settings_go_to_the_allocator_and_to_pytorch(stand):
    with pytest.warns(FutureWarning, match="_set_allocator_settings is deprecated"):
        stand.memory._set_allocator_settings("garbage_collection_threshold:0.5")
    assert stand.allocators[0].settings.garbage_collection_threshold == 0.5
    assert stand.world.settings == ["garbage_collection_threshold:0.5"]


def test_a_fault_in_settings_is_pytorchs_complaint_and_what_stood_before_it_is_applied(stand):
    stand.world.complaint = ValueError("Unrecognized key")
    with pytest.raises(ValueError, match="Unrecognized key"):
        stand.replacements.set_allocator_settings("garbage_collection_threshold:0.5,no_such_key:1")
    assert stand.allocators[0].settings.garbage_collection_threshold == 0.5


def test_settings_that_are_no_text_are_refused(stand):
    with pytest.raises(TypeError, match="settings must be a string, not int"):
        stand.replacements.set_allocator_settings(5)


def test_settings_are_kept_for_devices_that_are_used_later(stand):
    stand.world.initialized = False
    stand.replacements.set_allocator_settings("expandable_segments:True")
    stand.replacements.set_allocator_settings("garbage_collection_threshold:0.5")
    assert stand.process_state.process_state.settings.expandable_segments
    assert stand.process_state.process_state.settings.garbage_collection_threshold == 0.5
    assert stand.memory._snapshot()["allocator_settings"]["expandable_segments"]


def test_a_device_that_is_used_later_gets_the_state_of_the_others(stand):
    stand.memory.caching_allocator_enable(False)
    stand.memory.record_history(context=None)
    later = stand.allocators[1]
    assert later.pools.caching
    stand.process_state.process_state.apply_to(later)
    assert not later.pools.caching
    later.pools.caching = True
    stand.process_state.process_state.apply_to(later)
    assert later.pools.caching, "it was told once"
    later.malloc(MIB)
    assert [entry["action"] for entry in later.snapshot()["device_traces"][-1]] == ["segment_alloc", "alloc"]


def test_the_backend_has_a_name_of_its_own(stand):
    assert stand.memory.get_allocator_backend() == "allotment"


# Out of memory.


def test_an_observer_is_called_with_pytorchs_four_numbers(stand):
    calls = []
    stand.replacements.attach_out_of_memory_observer(lambda *numbers: calls.append(numbers))
    stand.process_state.process_state.apply_to(stand.allocators[1])
    with pytest.raises(MemoryError):
        stand.allocators[0].malloc(1025 * MIB)
    stand.allocators[1].limit = 64 * MIB
    with pytest.raises(MemoryError):
        stand.allocators[1].malloc(100 * MIB - 1)
    assert calls == [(0, 1026 * MIB, 1024 * MIB, 1024 * MIB), (1, 100 * MIB, 64 * MIB, 1024 * MIB)]


# History and snapshots.


def test_the_stack_of_a_live_block_is_found_by_its_start(stand):
    stand.memory.record_history()
    address = stand.allocators[0].malloc(MIB)
    frames = stand.memory._allocation_traceback(address)
    assert frames[0]["name"] == "test_the_stack_of_a_live_block_is_found_by_its_start"
    assert stand.memory._allocation_traceback(address + 512) is None
    stand.allocators[0].free(address)
    assert stand.memory._allocation_traceback(address) is None


def test_history_is_recorded_read_and_forgotten(stand):
    assert not stand.memory.is_history_enabled()
    stand.memory.record_history(context=None, max_entries=3)
    assert stand.memory.is_history_enabled()
    for _ in range(3):
        stand.allocators[0].free(stand.allocators[0].malloc(MIB))
    trace = stand.memory._snapshot()["device_traces"]
    assert [entry["action"] for entry in trace[0]] == ["alloc", "free_requested", "free_completed"]
    assert len(trace) == 2 and trace[1] == []
    stand.memory._record_memory_history(None)
    assert not stand.memory.is_history_enabled()
    assert stand.memory._snapshot()["device_traces"] == [[], []]


def test_recording_has_pytorchs_parameters(stand):
    parameters = inspect.signature(stand.memory._record_memory_history).parameters
    assert list(parameters) == [
        "enabled", "context", "stacks", "max_entries", "device", "clear_history", "compile_context",
        "global_record_annotations", "skip_actions", "record_pinned_host_memory", "record_cuda",
    ]  # fmt: skip
    assert parameters["max_entries"].default == sys.maxsize


def test_recording_pinned_memory_warns_that_it_is_not_recorded(stand):
    with pytest.warns(UserWarning, match="record_pinned_host_memory has no effect in hooks mode"):
        stand.memory._record_memory_history(record_pinned_host_memory=True, record_cuda=False)
    assert not stand.memory.is_history_enabled()
    with pytest.warns(UserWarning, match="record_pinned_host_memory"):
        stand.memory._record_memory_history(record_pinned_host_memory=True)
    assert stand.memory.is_history_enabled()
    with pytest.warns(UserWarning, match="record_pinned_host_memory"):
        stand.memory._record_memory_history(True, record_pinned_host_memory=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"enabled": "some"}, "expected state to be 'state', 'all', or None"),
        ({"context": "some"}, "expected context to be 'state', 'alloc', 'all', or None"),
        ({"stacks": "some"}, "expected stacks to be 'python', or 'all'"),
    ],
)
def test_wrong_words_for_a_recording_are_refused_with_those_allowed(stand, arguments, words):
    with pytest.raises(RuntimeError, match=words):
        stand.memory.record_history(**arguments)
    assert not stand.memory.is_history_enabled()


def test_actions_to_skip_are_skipped_and_unknown_ones_passed_over(stand):
    stand.memory.record_history(context=None, skip_actions=["free_requested", "segment_map", "no such thing"])
    stand.allocators[0].free(stand.allocators[0].malloc(MIB))
    actions = [entry["action"] for entry in stand.memory._snapshot()["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc", "free_completed"]


def test_a_bool_selects_the_former_parameters(stand):
    stand.memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    stand.allocators[0].malloc(MIB)
    entries = stand.memory._snapshot()["device_traces"][0]
    assert [entry["action"] for entry in entries] == ["segment_alloc", "alloc"]
    assert entries[-1]["frames"]
    stand.memory._record_memory_history(False)
    assert not stand.memory.is_history_enabled()


def test_the_former_parameters_are_taken_in_the_form_of_every_release(stand):
    stand.patching.patch()
    until_2_13 = (True, True, 100, True, False, False, False, False, [])
    stand.torch._C._cuda_record_memory_history_legacy(*until_2_13)
    stand.torch._C._cuda_record_memory_history_legacy(*until_2_13, False, True)
    assert stand.memory.is_history_enabled()
    stand.torch._C._cuda_record_memory_history_legacy(False, *until_2_13[1:], False, False)
    assert stand.memory.is_history_enabled(), "the history of CUDA memory was to be left as it is"


def test_a_snapshot_joins_the_devices_in_use(stand):
    stand.world.with_context.add(1)
    for allocator in stand.allocators:
        allocator.record_history(context=None)
        allocator.malloc(MIB)
        allocator.history.record_annotation({"name": "step"})
    snapshot = stand.memory._snapshot()
    assert [segment["device"] for segment in snapshot["segments"]] == [0, 1]
    assert [len(trace) for trace in snapshot["device_traces"]] == [2, 2]
    assert [annotation["device"] for annotation in snapshot["external_annotations"]] == [0, 1]
    assert snapshot["allocator_settings"]["expandable_segments"] is False
    assert stand.memory.memory_snapshot() == snapshot["segments"]


def test_a_snapshot_of_a_pool_has_only_its_segments(stand):
    allocator = stand.allocators[0]
    allocator.malloc(MIB)
    with allocator.pool() as pool:
        inside = allocator.malloc(MIB)
    segments = stand.memory.memory_snapshot(pool.id)
    assert [segment["segment_pool_id"] for segment in segments] == [pool.id]
    assert stand.memory.memory_snapshot((0, 0), include_traces=False) == stand.memory.memory_snapshot()
    allocator.free(inside)


def test_a_snapshot_before_initialization_is_empty(stand):
    stand.world.initialized = False
    snapshot = stand.memory._snapshot()
    assert snapshot["segments"] == [] == snapshot["device_traces"]
    assert snapshot["allocator_settings"]["max_split_size"] == -1


def test_a_snapshot_is_dumped_as_a_pickle_of_itself(stand, tmp_path):
    stand.allocators[0].malloc(MIB)
    stand.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes()) == stand.memory._snapshot()


def test_metadata_is_attached_to_what_the_thread_records(stand):
    stand.memory.record_history(context=None)
    stand.memory._set_memory_metadata("layer 3")
    assert stand.memory._get_memory_metadata() == "layer 3"
    stand.allocators[0].malloc(MIB)
    stand.memory._set_memory_metadata("")
    assert stand.memory._snapshot()["device_traces"][0][-1]["user_metadata"] == "layer 3"


class Tensor:
    is_cuda = True

    def __init__(self, address):
        self.address = address

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self.address


def test_a_note_on_a_tensor_is_recorded_with_its_address(stand):
    stand.patching.patch()
    stand.memory.record_history(context=None)
    address = stand.allocators[0].malloc(MIB)
    stand.memory._annotate_tensor(Tensor(address), "kept by autograd")
    entry = stand.memory._snapshot()["device_traces"][0][-1]
    assert (entry["action"], entry["addr"], entry["user_metadata"]) == ("annotate", address, "kept by autograd")
    assert stand.torch._C._cuda_memoryMetadataSupported() and stand.memory._memory_metadata_supported()
    stand.allocators[0].free(address)
    with pytest.raises(RuntimeError, match=f"no live allocation found at pointer {address:#x}"):
        stand.torch._C._cuda_annotateMemory(address, "too late")


def test_figures_of_the_accelerator_lack_what_pytorch_shows_of_cuda_only(stand):
    stand.patching.patch()
    of_cuda, of_accelerator = stand.torch._C._cuda_memoryStats(0), stand.torch._C._accelerator_getDeviceStats(0)
    assert set(of_cuda) - set(of_accelerator) == {"num_oom_rejections", "reserved_bytes_by_private_pools"}


# Pools.


def test_a_pool_is_made_on_the_current_device_with_pytorchs_next_id(stand):
    stand.world.current = 1
    first, second = stand.memory.MemPool(), stand.memory.MemPool(use_on_oom=True, no_split=True)
    assert (first.id, second.id) == ((0, 1), (0, 2))
    assert first.device == 1 and first.use_count() == 1 and first.allocator is None
    assert stand.allocators[1].pools.use_count(second.id) == 1


def test_a_pool_that_is_dropped_releases_its_memory(stand):
    pool = stand.memory.MemPool()
    allocator = stand.allocators[0]
    allocator.pools.begin_allocate_to_pool(pool.id)
    assert pool.use_count() == 2
    address = allocator.malloc(MIB)
    allocator.pools.end_allocate_to_pool(pool.id)
    allocator.pools.release(pool.id)
    assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
    allocator.free(address)
    assert stand.memory.memory_reserved() > 0
    del pool
    gc.collect()
    assert stand.memory.memory_reserved() == 0


def test_a_pool_over_another_allocator_is_refused(stand):
    with pytest.raises(UnsupportedError, match="native allocator"):
        stand.memory.MemPool(allocator=object())


def test_live_allocations_of_a_pool_are_compared(stand):
    pool = stand.memory.MemPool()
    assert stand.replacements.check_pool_live_allocations(0, pool.id, set())
    assert not stand.replacements.check_pool_live_allocations(0, pool.id, {512})
    with pytest.raises(RuntimeError, match="Could not find pool of id"):
        stand.replacements.check_pool_live_allocations(0, (0, 99), set())


# Under PyTorch's own names.


def test_what_works_as_it_is_stays_pytorchs_own(stand):
    for name in PASSED_ON:
        assert getattr(stand.memory, name) is getattr(stand.torch.cuda.memory, name)


def test_every_public_name_is_there(stand):
    assert all(hasattr(stand.memory, name) for name in stand.memory.__all__)
    assert sorted(set(stand.memory.__all__)) == sorted(stand.memory.__all__)


def test_pytorchs_functions_raise_without_the_patch_and_answer_with_it(stand):
    asked_before_the_patch = stand.torch.cuda.memory_stats_as_nested_dict
    with pytest.raises(RuntimeError, match="does not yet support"):
        asked_before_the_patch()
    stand.patching.patch()
    assert asked_before_the_patch() == stand.allocators[0].inspection.nested_stats()
    assert stand.torch.cuda.get_allocator_backend() == "allotment"


def test_the_patch_answers_everything_that_was_refused(stand):
    assert set(REFUSED) <= set(stand.replacements.REPLACEMENTS)
    stand.patching.patch()
    assert stand.patching.is_patched()
    for name, replacement in stand.replacements.REPLACEMENTS.items():
        assert getattr(stand.torch._C, name) is replacement
    assert stand.torch.cuda.MemPool is stand.torch.cuda.memory.MemPool is stand.memory.MemPool


def test_a_plug_in_is_initialized_when_pytorch_is(stand):
    stand.patching.patch()
    assert stand.torch._C._accelerator_isAllocatorInitialized()
    stand.world.initialized = False
    assert not stand.torch._C._accelerator_isAllocatorInitialized()


def test_the_patch_is_taken_back_without_a_trace(stand):
    modules = (stand.torch, stand.torch._C, stand.torch.cuda, stand.torch.cuda.memory)
    before = [dict(vars(module)) for module in modules]
    stand.patching.patch()
    stand.patching.patch()
    assert [dict(vars(module)) for module in modules] != before
    stand.patching.unpatch()
    assert [dict(vars(module)) for module in modules] == before
    stand.patching.unpatch()
    assert not stand.patching.is_patched()


def test_the_patch_passes_over_what_a_version_does_not_have(stand):
    del stand.torch._C._cuda_isHistoryEnabled
    stand.patching.patch()
    stand.patching.unpatch()
    assert not hasattr(stand.torch._C, "_cuda_isHistoryEnabled")


def test_settings_reach_pytorch_under_the_patch_too(stand):
    stand.patching.patch()
    stand.torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.25")
    assert stand.world.settings == ["garbage_collection_threshold:0.25"]
    assert stand.allocators[0].settings.garbage_collection_threshold == 0.25


# cuDNN's search, which PyTorch ends with an error under a plug-in.


def test_a_program_that_wants_cudnns_search_is_warned_and_goes_on_without(stand):
    stand.patching.patch()
    with pytest.warns(UserWarning, match="benchmark stays False"):
        stand.torch.backends.cudnn.benchmark = True
    assert not stand.torch.backends.cudnn.benchmark
    with pytest.warns(UserWarning, match="benchmark stays False"):
        stand.torch._C._set_cudnn_benchmark(True)
    assert not stand.world.searches


def test_a_search_that_is_on_when_names_are_patched_is_switched_off(stand):
    stand.torch.backends.cudnn.benchmark = True
    with pytest.warns(UserWarning, match="benchmark stays False"):
        stand.patching.patch()
    assert not stand.world.searches


def test_switching_the_search_off_warns_of_nothing(stand, recwarn):
    stand.patching.patch()
    stand.torch.backends.cudnn.benchmark = False
    assert not recwarn.list


def test_without_the_patch_the_search_is_pytorchs_again(stand):
    stand.patching.patch()
    stand.patching.unpatch()
    stand.torch.backends.cudnn.benchmark = True
    assert stand.world.searches
