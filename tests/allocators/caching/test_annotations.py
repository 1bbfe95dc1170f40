"""What a profiler receives with `nvtx:True`: a library in a separate process listens as a profiler does."""

import sys

import pytest

import allotment
from allotment.errors import SettingsError, UnsupportedError
from helpers.profiler import heard, ranges_of, samples_of

MIB = 1 << 20
CHUNKS = ("chunk_create", "chunk_release")


def test_device_calls_are_ranges_and_change_the_counters(tmp_path):
    lines = heard(
        """
        from allotment import *

        alloc = Allocator("host", settings="nvtx:True")
        first = alloc.malloc(5 << 20)
        for _ in range(100):
            alloc.free(alloc.malloc(3 << 20))       # which the cache serves
        second = alloc.malloc(100 << 20)
        alloc.free(second)
        alloc.empty_cache()
        alloc.free(first)
        alloc.close()
        """,
        tmp_path,
    )
    assert lines == [
        f"push segment_allocate {20 * MIB}",
        "pop",
        f"count host reserved {20 * MIB}",
        "count host allocated 0",
        f"push segment_allocate {100 * MIB}",
        "pop",
        f"count host reserved {120 * MIB}",
        f"count host allocated {5 * MIB}",
        f"push segment_free {100 * MIB}",
        "pop",
        f"count host reserved {20 * MIB}",
        f"count host allocated {5 * MIB}",
        f"push segment_free {20 * MIB}",
        "pop",
        "count host reserved 0",
        "count host allocated 0",
    ]


@pytest.mark.parametrize("settings", ["expandable_segments:True", "placement:dense"])
@pytest.mark.parametrize("device", ["host", "sim:1GiB"])
def test_every_range_ends_and_all_memory_that_came_goes(tmp_path, device, settings):
    lines = heard(
        f"""
        from allotment import *

        alloc = Allocator({device!r}, settings="nvtx:True,{settings}")
        stream = Stream(alloc)
        for _ in range(3):
            blocks = [alloc.malloc(size << 20, stream) for size in (1, 30, 7)]
            for block in blocks:
                alloc.free(block)
            alloc.empty_cache()
        alloc.inspection.check_invariants()
        alloc.close()
        """,
        tmp_path,
    )
    assert ranges_of(lines) >= {"chunk_create", "map", "unmap"}
    reserved = samples_of(lines, f"{device} reserved")
    assert max(reserved) >= 38 * MIB
    assert reserved[-1] == 0


def test_allocators_on_one_device_are_counted_together(tmp_path):
    lines = heard(
        """
        from allotment import *

        from allotment.devices import HostDevice

        device = HostDevice()
        one, two = (Allocator(device, settings="nvtx:True") for _ in range(2))
        first, second = one.malloc(50 << 20), two.malloc(60 << 20)
        one.free(first), one.close()
        two.free(second), two.close()
        """,
        tmp_path,
    )
    assert samples_of(lines, "host reserved") == [50 * MIB, 110 * MIB, 60 * MIB, 0]


def test_a_capture_is_detected_by_the_current_stream_as_without(tmp_path):
    heard(
        """
        from allotment import *

        def frees_while_a_request_is_captured(settings):
            alloc = Allocator("host", settings=settings)
            stream, other = Stream(alloc), Stream(alloc)
            with capture(stream) as graph:
                block = alloc.malloc(1 << 20)
                alloc.record_stream(block, other)
                alloc.free(block)
                again = alloc.malloc(1 << 20)
            same = again == block
            alloc.free(again)
            graph.reset()
            alloc.inspection.check_invariants()
            return same, alloc.stats()["segment.all.current"]

        plain, annotated = map(frees_while_a_request_is_captured, ("", "nvtx:True"))
        assert plain == annotated, (plain, annotated)
        """,
        tmp_path,
    )


def test_an_allocator_that_a_collection_deletes_releases_its_memory_and_reports_it(tmp_path, capfd):
    lines = heard(
        """
        import gc

        from allotment import *

        for _ in range(3):
            alloc = Allocator("host", settings="nvtx:True")
            alloc.free(alloc.malloc(30 << 20))
            cycle = [alloc]
            cycle.append(cycle)
            alloc.limits.attach_out_of_memory_observer(cycle.append)
            del alloc, cycle
            gc.collect()
        """,
        tmp_path,
    )
    assert samples_of(lines, "host reserved") == 3 * [30 * MIB, 0]
    assert "KeyError" not in capfd.readouterr().err


def test_allocators_come_and_go_in_several_threads(tmp_path):
    lines = heard(
        """
        import threading

        from allotment import *
        from allotment.devices import HostDevice

        device = HostDevice()

        def work():
            for _ in range(50):
                with Allocator(device, settings="nvtx:True,expandable_segments:True") as alloc:
                    alloc.free(alloc.malloc(30 << 20))
                    alloc.empty_cache()
                    alloc.inspection.check_invariants()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """,
        tmp_path,
    )
    created, released = (sum(line.startswith(f"push {name} ") for line in lines) for name in CHUNKS)
    assert created == released == 4 * 50 * 2
    assert ranges_of(lines)


def test_the_end_of_the_program_is_silent(tmp_path, capfd):
    lines = heard(
        """
        import atexit

        from allotment import *

        alloc = Allocator("host", settings="nvtx:True")
        kept = alloc.malloc(30 << 20)
        atexit.register(alloc.empty_cache)      # called before, and told
        alloc.free(alloc.malloc(50 << 20))
        """,
        tmp_path,
    )
    assert samples_of(lines, "host reserved") == [30 * MIB, 80 * MIB, 30 * MIB]
    assert capfd.readouterr().err == ""


def test_where_nobody_listens_nothing_happens():
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    with allotment.Allocator("host", settings="nvtx:True") as alloc:
        alloc.free(alloc.malloc(MIB))
        with pytest.raises(SettingsError, match="nvtx"):
            alloc.settings = "nvtx:False"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'allotment\[nvtx\]'"):
        allotment.Allocator("host", settings="nvtx:True")
