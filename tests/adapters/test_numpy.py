"""NumPy's arrays from an allocator: where their memory comes from, what it contains, and where it returns to."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import allotment
import allotment.numpy
from allotment.errors import RequestError, SettingsError
from allotment.numpy import _idle

MIB = 1 << 20


@pytest.fixture
def allocator():
    with allotment.Allocator("host") as made:
        yield made
        gc.collect()
        assert made.stats()["allocated_bytes.all.current"] == 0, "an array outlived its test"
        made.inspection.check_invariants()


def held(allocator) -> int:
    return allocator.tenants().get("numpy", {}).get("requested_bytes", 0)


def in_use(allocator) -> int:
    return allocator.stats()["allocated_bytes.all.current"]


def test_large_arrays_come_from_the_allocator_and_small_ones_do_not(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        large = np.empty(MIB, np.uint8)
        small = np.empty(MIB - 1, np.uint8)
    assert held(allocator) == MIB
    assert allocator._block_around(large.ctypes.data) is not None
    assert allocator._block_around(small.ctypes.data) is None


def test_results_of_operations_are_in_the_allocator(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        a = np.ones(MIB)
        b = np.sort(a * a + a)
    assert held(allocator) == a.nbytes + b.nbytes
    assert (b == 2).all()


def test_memory_of_one_array_serves_the_next(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        first = np.empty(MIB).ctypes.data
        assert np.empty(MIB).ctypes.data == first
    assert allocator.stats()["segment.all.allocated"] == 1


@pytest.mark.parametrize("size", [2 * MIB, 40 * MIB])
def test_zeros_are_zeros_also_in_memory_that_was_written(allocator, size):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        for _ in range(3):
            zeros = np.zeros(size + 5, np.uint8)
            assert not zeros.any()
            zeros[:] = 7
            del zeros


def test_zeros_leave_their_neighbours_as_they_are(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        whole = np.full(120 * MIB, 9, np.uint8)
        del whole
        before = np.full(MIB + 512, 1, np.uint8)
        zeros = np.zeros(40 * MIB + 512, np.uint8)  # starts and ends inside a page
        behind = np.full(MIB, 2, np.uint8)
        assert zeros.ctypes.data % 4096 != 0
        assert not zeros.any()
        assert (before == 1).all() and (behind == 2).all()


def test_an_array_that_grows_keeps_its_values(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        array = np.arange(MIB)
        array.resize(3 * MIB, refcheck=False)
        assert (array[:MIB] == np.arange(MIB)).all()
        assert not array[MIB:].any()
        array.resize(10, refcheck=False)  # small now, so from the system
        assert array.tolist() == list(range(10))
    assert held(allocator) == 0


def test_an_array_that_outgrows_the_threshold_stays_with_the_system(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        array = np.fromiter((i for i in range(MIB // 4)), np.int64)
    assert (array == np.arange(MIB // 4)).all()


def test_arrays_outlive_the_block_and_return_to_the_allocator(allocator):
    with allotment.numpy.caching(allocator, idle_seconds=None):
        array = np.ones(MIB)
    assert array.sum() == MIB
    outside = np.ones(MIB)
    assert held(allocator) == array.nbytes
    del array, outside
    assert in_use(allocator) == 0


def test_an_allocator_that_arrays_still_use_lives_as_long_as_they():
    with allotment.numpy.caching(limit="64MiB", idle_seconds=None) as allocator:
        array = np.ones(MIB)
    repr(allocator)
    del allocator
    gc.collect()
    assert array.sum() == MIB
    del array


def test_blocks_nest_and_give_way_to_the_one_before(allocator):
    with allotment.Allocator("host") as other:
        with allotment.numpy.caching(allocator, idle_seconds=None):
            with allotment.numpy.caching(other, idle_seconds=None):
                inner = np.ones(MIB)
            outer = np.ones(2 * MIB)
        assert (held(other), held(allocator)) == (inner.nbytes, outer.nbytes)
        del inner, outer


@pytest.mark.threads
def test_a_context_is_only_its_threads_unless_python_passes_contexts_on(allocator):
    made = []
    with allotment.numpy.caching(allocator, idle_seconds=None):
        thread = threading.Thread(target=lambda: made.append(np.ones(MIB)))
        thread.start()
        thread.join()
    hands_on = bool(getattr(sys.flags, "thread_inherit_context", False))  # as a free-threaded Python does
    assert (held(allocator) != 0) == hands_on
    made.clear()


def run_python(program: str, *, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=os.environ, timeout=120
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_installed_it_serves_every_thread_and_takes_back_what_it_gave():
    """Run in a separate process: what was installed once lives until the process ends."""
    assert run_python("""
        import threading
        import numpy as np
        import allotment.numpy
        before = np.ones(1 << 20)
        allocator = allotment.numpy.install()
        assert allotment.numpy.is_installed()
        made = []
        thread = threading.Thread(target=lambda: made.append(np.ones(1 << 20)))
        thread.start(); thread.join()
        del before
        print(allocator.tenants()["numpy"]["blocks"])
        other = allotment.numpy.install(allotment.Allocator("host"))
        second = np.ones(1 << 20)
        allotment.numpy.uninstall()
        assert not allotment.numpy.is_installed()
        after = np.ones(1 << 20)
        made.clear(); del second, after
        print(allocator.stats()["allocated_bytes.all.current"], other.stats()["allocated_bytes.all.current"])
        allocator.inspection.check_invariants(); other.inspection.check_invariants()
    """).split() == ["1", "0", "0"]


def test_what_exceeds_the_limit_raises_numpys_memory_error_with_the_reason(allocator):
    allocator.limit = "64MiB"
    with allotment.numpy.caching(allocator, idle_seconds=None):
        kept = np.empty(40 * MIB, np.uint8)
        with pytest.raises(MemoryError, match=r"Unable to allocate 40\.0 MiB for an array with shape") as caught:
            np.empty(40 * MIB, np.uint8)
        assert "limit 64.00 MiB" in caught.value.__notes__[0]
        assert np.empty(20 * MIB, np.uint8).nbytes == 20 * MIB
        del kept


def test_a_memory_error_without_a_shape_gets_the_reason_when_it_leaves_the_block(allocator):
    allocator.limit = "32MiB"
    with pytest.raises(MemoryError) as caught, allotment.numpy.caching(allocator, idle_seconds=None):
        array = np.empty(20 * MIB, np.uint8)
        array.resize(200 * MIB, refcheck=False)
    assert "200.00 MiB requested" in caught.value.__notes__[0]
    array = None


def test_a_failure_is_reported_once(allocator):
    allocator.limit = "32MiB"
    with allotment.numpy.caching(allocator, idle_seconds=None), pytest.raises(MemoryError):
        np.empty(64 * MIB, np.uint8)
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.uint8)
    assert not hasattr(caught.value, "__notes__")


def test_holders_of_memory_are_listed_by_line(allocator):
    allocator.record_history()
    with allotment.numpy.caching(allocator, idle_seconds=None):
        first = [np.ones(MIB), np.ones(MIB)]
        line = sys._getframe().f_lineno - 1
        second = np.ones(MIB)
    top, other = allotment.numpy.holders(allocator)
    assert top == (f"{Path(__file__)}:{line}", 16 * MIB, 2)
    assert other.bytes == second.nbytes
    allocator.record_history(None)
    del first, second


def test_memory_is_counted_for_the_callers_own_tenant(allocator):
    with allotment.numpy.caching(allocator.tenant("dashboard"), idle_seconds=None):
        array = np.ones(MIB)
    assert allocator.tenants()["dashboard"]["requested_bytes"] == array.nbytes
    assert allotment.numpy.holders(allocator.tenant("dashboard"))[0].bytes == array.nbytes
    del array


def test_idle_memory_is_released_and_used_memory_stays(allocator):
    cache = allotment.numpy._cache(allocator, "1MiB", None)
    watched = _idle._Watched(cache, 1.0)
    before = cache.enter()
    kept, burst = np.ones(8 * MIB), np.ones(32 * MIB)
    del burst
    assert watched.look()  # the burst was within the period
    assert allocator.stats()["reserved_bytes.all.current"] >= 320 * MIB
    watched.look()
    assert allocator.stats()["reserved_bytes.all.current"] < 100 * MIB
    assert kept.sum() == 8 * MIB
    del kept
    cache.leave(before)
    del cache
    watched.look()
    assert not watched.look(), "nothing is left to look after"
    assert allocator.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.threads
def test_the_idle_thread_releases_memory_by_itself():
    gone = threading.Event()

    def listen(action, *_):
        if action == "segment_free":
            gone.set()

    with allotment.Allocator("host") as allocator:
        allocator.history.attach_trace_tracker(listen)
        with allotment.numpy.caching(allocator, idle_seconds=0.01):
            np.ones(MIB)
        assert gone.wait(60)
        allocator.history.detach_trace_tracker(listen)


def test_a_forked_child_has_its_own_copy():
    assert run_python("""
        import os
        import numpy as np
        import allotment.numpy
        allocator = allotment.numpy.install(idle_seconds=0.05)
        array = np.ones(1 << 20)
        child = os.fork()
        if child == 0:
            array[:] = 5
            more = np.zeros(1 << 20)
            ok = array.sum() == 5 * (1 << 20) and not more.any()
            del array, more
            allocator.empty_cache()
            allocator.inspection.check_invariants()
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        print(array.sum() == 1 << 20)
    """).split() == ["True"]


@pytest.mark.parametrize("settings", ["expandable_segments:True", "placement:dense", "shareable:True"])
def test_memory_that_a_child_would_share_is_refused(settings):
    shared = allotment.Allocator("host", settings=settings)
    with pytest.raises(RequestError, match="a forked child shares"):
        allotment.numpy._cache(shared, "1MiB", None)


def test_bad_arguments_are_refused(allocator):
    with pytest.raises(RequestError, match="works with host memory"):
        allotment.numpy._cache(allotment.Allocator("sim:1GiB"), "1MiB", None)
    with pytest.raises(TypeError, match="must be an Allocator"):
        allotment.numpy._cache("host", "1MiB", None)
    with pytest.raises(SettingsError, match="invalid size"):
        allotment.numpy._cache(allocator, "a lot", None)
    with pytest.raises(RequestError, match="limit is for an allocator that is created here"):
        allotment.numpy._cache(allocator, "1MiB", "1GiB")
    with pytest.raises(RequestError, match="idle_seconds"), allotment.numpy.caching(allocator, idle_seconds=-1):
        pass


@pytest.mark.threads
def test_threads_going_in_and_out_keep_their_values():
    """tests/stress/numpy_threads.py is the long run of this test."""
    program = Path(__file__).parents[1] / "stress" / "numpy_threads.py"
    done = subprocess.run(
        [sys.executable, str(program), "--seconds", "2"], capture_output=True, text=True, env=os.environ, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 bytes left" in done.stdout
