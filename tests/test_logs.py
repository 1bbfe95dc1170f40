"""The log: its messages, their facts, and its silence without a handler."""

import json
import logging
import subprocess
import sys

import pytest

import allotment
from allotment import _logs as logs
from allotment import entry
from helpers.queue_device import QueueDevice

MIB = 1 << 20


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger="allotment")
    return caplog


def messages(log):
    return [(record.levelname, record.getMessage()) for record in log.records]


def test_memory_that_is_out_is_logged_with_its_figures(log):
    allocator = allotment.Allocator("sim:64MiB")
    address = allocator.malloc(20 * MIB)
    with pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc(100 * MIB)
    level, text = messages(log)[-1]
    assert level == "ERROR"
    assert "100.00 MiB requested, 20.00 MiB in use" in text
    allocator.free(address)


def test_memory_that_is_out_for_a_limit_is_logged_with_that_limit(log):
    allocator = allotment.Allocator("sim:64MiB")
    allocator.set_limit("weights", hard="10MiB")
    with allotment.tag("weights"), pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc(20 * MIB)
    level, text = messages(log)[-1]
    assert level == "ERROR"
    assert text.endswith("the limit of tag 'weights' is 10.00 MiB")


def test_a_step_that_helps_is_not_preceded_by_warnings(log):
    allocator = allotment.Allocator("sim:64MiB")
    kept = [allocator.malloc(20 * MIB) for _ in range(3)]
    cached = allocator.malloc(512)
    allocator.free(cached)

    def free_one(facts):
        allocator.free(kept.pop())
        return True

    allocator.on_out_of_memory(free_one, tries=3)
    address = allocator.malloc(40 * MIB)
    assert messages(log) == []
    for block in [address, *kept]:
        allocator.free(block)


def test_steps_that_do_not_help_are_followed_by_one_warning_and_one_error(log):
    allocator = allotment.Allocator("sim:64MiB")
    cached = allocator.malloc(40 * MIB)
    allocator.free(cached)
    allocator.on_out_of_memory(lambda facts: True, tries=5)
    with pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc(100 * MIB)
    assert [level for level, _ in messages(log)] == ["WARNING", "ERROR"]
    assert "40.00 MiB of cached memory" in messages(log)[0][1]


def test_a_release_for_a_request_is_logged(log):
    allocator = allotment.Allocator("sim:64MiB")
    for address in [allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)]:
        allocator.free(address)
    address = allocator.malloc(50 * MIB)
    assert messages(log) == [
        (
            "WARNING",
            "sim:64MiB had no memory for a request: 40.00 MiB of cached memory was released,"
            " and the request was served",
        )
    ]
    allocator.free(address)


def test_records_of_memory_that_runs_short_are_structured(log):
    allocator = allotment.Allocator("sim:64MiB", limit="48MiB")
    allocator.free(allocator.malloc(20 * MIB))
    with allotment.tag("weights"), pytest.raises(allotment.OutOfMemoryError):
        allocator.tenant("trainer").malloc(100 * MIB)
    released, out = log.records
    assert released.event == "cache_released"
    assert released.facts == {"device": "sim:64MiB", "released": 20 * MIB, "served": False}
    assert out.event == "out_of_memory"
    facts = json.loads(json.dumps(out.facts))
    assert (facts["requested"], facts["limit"], facts["limited_by"]) == (100 * MIB, 48 * MIB, "the allocator")
    assert (facts["tag"], facts["tenant"]) == ("weights", "trainer")


def test_a_pool_of_the_device_that_is_out_is_logged(log):
    allocator = allotment.AsyncAllocator(allotment.SimulatedDevice("64MiB"))
    with pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc(100 * MIB)
    assert [record.event for record in log.records] == ["out_of_memory"]
    assert log.records[0].facts["device_pool"]


def test_requests_from_c_are_logged_too(log):
    import ctypes

    allocator = allotment.Allocator("sim:64MiB")
    table = entry.entry_points_address(allocator)
    words = ctypes.POINTER(ctypes.c_size_t)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    context, allocate = ctypes.cast(table, words)[2], function(ctypes.cast(table, words)[3])
    allocator.free(allocator.malloc(40 * MIB))
    assert allocate(context, 50 * MIB, 0, None)
    assert allocate(context, 100 * MIB, 0, None) is None
    assert [level for level, _ in messages(log)] == ["WARNING", "WARNING", "ERROR"]


def test_expandable_segments_in_vain_are_logged(log):
    with pytest.warns(UserWarning, match="expandable_segments"):
        allotment.Allocator(QueueDevice(), settings="expandable_segments:True")
    assert messages(log) == [
        ("WARNING", "queue does not support virtual memory: expandable_segments:True has no effect on it")
    ]


def test_a_refused_fork_is_logged(log):
    logs.fork_refused("CUDA was initialized before")
    assert messages(log) == [("ERROR", "refused in a forked process: CUDA was initialized before")]


def test_a_request_that_the_cache_serves_is_not_logged(log):
    allocator = allotment.Allocator("sim:64MiB")
    for _ in range(10):
        allocator.free(allocator.malloc(20 * MIB))
    assert messages(log) == []


def test_nothing_is_printed_unasked():
    program = (
        "import allotment\na = allotment.Allocator('sim:64MiB')\n"
        "try:\n    a.malloc(1 << 30)\nexcept MemoryError:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


# --- requirements ---


def test_without_typer_the_command_says_what_to_install():
    program = "import sys\nsys.modules['typer'] = None\nimport allotment._cli\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "allotment: the commands need Typer and Rich: pip install 'allotment[cli]'\n"


def test_the_package_works_without_the_command_lines_libraries():
    program = (
        "import sys\nsys.modules['typer'] = sys.modules['rich'] = None\n"
        "import allotment\nimport allotment.numpy, allotment.entry, allotment.cpu, allotment.lab\n"
        "a = allotment.Allocator('host'); a.free(a.malloc(100))\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
