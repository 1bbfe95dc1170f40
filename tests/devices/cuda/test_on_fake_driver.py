"""The CUDA backend on a driver made of host memory, to test it without a GPU.

Each test runs in a separate process: a process that has opened one libcuda cannot open another.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from helpers.c_library import compiled

pytest.importorskip("allotment._devices.cuda.device", reason="the CUDA backend is built only on Linux")

TESTS = Path(__file__).parents[2]
NAME = "libcuda.so.1"
CONSTRUCT = "from allotment._devices.cuda.device import CudaDevice; CudaDevice(0)"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Build a libcuda from source text or a file; returns its folder."""

    def build(source, *options):
        library = tmp_path_factory.mktemp("driver") / NAME
        return compiled(library, "-pthread", f"-Wl,-soname,{NAME}", *options, source).parent

    return build


@pytest.fixture(scope="session")
def driver(build):
    return build(TESTS / "helpers" / "fake_libcuda.c")


@pytest.fixture(scope="session")
def old_driver(build):
    return build(TESTS / "helpers" / "fake_libcuda.c", "-DOLD_DRIVER")


@pytest.fixture(scope="session")
def forgetful_driver(build):
    """A driver that crashes whenever a destroyed stream is used."""
    return build(TESTS / "helpers" / "fake_libcuda.c", "-DFORGETFUL")


def run(folder, *arguments, **settings):
    """Run Python with the driver in `folder`; all processes that it starts share the memory of one device."""
    with TemporaryDirectory() as place:
        environment = os.environ | settings | {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_MEMORY": f"{place}/memory"}
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)


def passed_and_skipped(folder, *leave_out, **settings):
    """Return how many of the GPU tests pass, and why the others are skipped."""
    options = ["-o", "addopts=", "-rs", "-p", "no:cacheprovider", "--capture=no"]  # shows a watchdog's message
    done = run(folder, "-m", "pytest", *options, str(TESTS / "gpu"), *leave_out, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    return passed, set(re.findall(r"SKIPPED \[\d+\] \S+: (.*)", done.stdout))


def test_the_tests_of_the_gpu_pass(driver):
    passed, skipped = passed_and_skipped(driver, FAKE_CUDA_WITHOUT="fabric")
    assert passed > 70
    assert "there is only one CUDA device" in skipped


@pytest.mark.slow
def test_the_tests_of_the_gpu_pass_on_two_devices_with_an_older_driver(old_driver):
    settings = {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_VERSION": "12020"}
    # Tests that start other processes take long, and do not depend on the driver's version.
    passed, skipped = passed_and_skipped(old_driver, f"--ignore={TESTS / 'gpu' / 'test_sharing.py'}", **settings)
    assert passed > 74
    assert "there is only one CUDA device" not in skipped


@pytest.mark.slow
def test_chunks_work_where_the_machine_shares_none(driver):
    _, skipped = passed_and_skipped(driver, FAKE_CUDA_WITHOUT="fabric,descriptors")
    assert any("shares no chunks by descriptor" in reason for reason in skipped)


def test_a_chunk_is_exported_over_the_fabric_where_there_is_one(driver):
    body = (
        "from allotment._devices.cuda.device import CudaDevice\n"
        "from allotment._core.contract.probe import Probe, Share\n"
        "device = CudaDevice(0); probe = Probe(device)\n"
        "page = probe.granularity()\n"
        "chunk = probe.chunk_create(page)\n"
        "imported = probe.chunk_import(Share.FABRIC, probe.chunk_export(chunk, Share.FABRIC), page)\n"
        "base = probe.range_reserve(2 * page)\n"
        "for address, handle in ((base, chunk), (base + page, imported)):\n"
        "    probe.map(address, page, handle)\n"
        "    probe.set_access(address, page, 0)\n"
        "device.copy_from_host(base, b'fabric')\n"
        "print(device.copy_to_host(base + page, 6).decode())\n"
    )
    assert run(driver, "-c", body).stdout == "fabric\n"


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_memory_returns_after_its_streams_were_destroyed_by_their_owner(driver, settings):
    body = f"""
import ctypes, allotment
cuda = ctypes.CDLL({NAME!r})
allocator = allotment.Allocator("cuda:0", settings={settings!r})
context, streams = ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)
for stream in streams:
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
with allocator.pool() as pool:
    block = allocator.malloc(100, streams[0].value)
    allocator.record_stream(block, streams[1].value)
for stream in streams:
    cuda.cuStreamDestroy_v2(stream)
allocator.free(block)
pool.close()
allocator.inspection.check_invariants()
print(allocator.stats()["reserved_bytes.all.current"])
"""
    done = run(driver, "-c", body)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
@pytest.mark.parametrize("end", ["allocator.empty_cache()", "pool.close()", "allocator.close()", "del pool, allocator"])
def test_no_stream_is_named_when_memory_returns(forgetful_driver, settings, end):
    body = f"""
import ctypes, allotment
cuda = ctypes.CDLL({NAME!r})
allocator = allotment.Allocator("cuda:0", settings={settings!r})
context, streams = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(4)]
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)
for stream in streams:
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
blocks = [allocator.malloc(size, stream.value) for size in (600, 5 << 20, 30 << 20) for stream in streams]
allocator.record_stream(blocks[0], streams[1].value)
pool = allocator.pool()
with pool:
    blocks += [allocator.malloc(3 << 20, streams[0].value) for _ in range(2)]
for block in blocks:
    allocator.free(block)
for stream in streams:
    cuda.cuStreamDestroy_v2(stream)
{end}
print("ended")
"""
    done = run(forgetful_driver, "-c", body)
    assert done.stdout == "ended\n", done.stderr


STREAMS_OF_OTHERS = f"""
import ctypes, allotment
cuda = ctypes.CDLL({NAME!r})
allocator = allotment.Allocator("cuda:0", settings="placement:dense")
context, streams = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(8)]
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)
for stream in streams:
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
def used_by(streams):
    for stream in streams:
        blocks = [allocator.malloc(size, stream.value) for size in (600, 5 << 20, 30 << 20)]
        for block in blocks:
            allocator.free(block)
"""


def test_no_request_names_a_stream_that_its_maker_has_destroyed(forgetful_driver):
    body = f"""{STREAMS_OF_OTHERS}
used_by(streams[:6])
for stream in streams[:6]:
    cuda.cuStreamDestroy_v2(stream)
with allocator.pool():
    used_by(streams[6:])
used_by(streams[6:])
reserved = allocator.stats()["reserved_bytes.all.current"]
allocator.limit = reserved                          # so that the next request needs what destroyed streams left
block = allocator.malloc(reserved - (60 << 20), streams[7].value)
allocator.inspection.check_invariants()
print(allocator.stats()["dense.waits"])
"""
    done = run(forgetful_driver, "-c", body)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize(("promises", "shares"), [([], False), ([True], True), ([True, False], False)])
def test_streams_share_memory_where_everybody_says_that_they_last(driver, promises, shares):
    body = f"""{STREAMS_OF_OTHERS}
for last in {promises}:
    allocator._note_streams(last)
used_by(streams)
print(allocator.stats()["dense.waits"] > 0)
"""
    done = run(driver, "-c", body)
    assert done.stdout == f"{shares}\n", done.stderr


@pytest.mark.parametrize("destroyed", [False, True])
@pytest.mark.parametrize("others_end", [False, True])
def test_streams_of_allotment_share_memory_also_after_their_end(forgetful_driver, destroyed, others_end):
    body = f"""{STREAMS_OF_OTHERS}
if {others_end}:
    allocator._note_streams(False)
own = [allotment.Stream(allocator) for _ in range(3)]
handles = [stream.handle for stream in own]
pair = allocator.malloc(30 << 20, handles[0]), allocator.malloc(5 << 20, handles[1])
for block in pair:
    allocator.free(block)
if {destroyed}:
    own[0].destroy()
    own[1].destroy()
found = {{allocator.malloc(30 << 20, handles[2]), allocator.malloc(5 << 20, streams[0].value)}}
allocator.inspection.check_invariants()
print(found == set(pair), allocator.stats()["dense.waits"])
"""
    done = run(forgetful_driver, "-c", body)
    assert done.stdout == "True 2\n", done.stderr


def test_a_stream_of_allotment_waits_for_no_stream_of_others(forgetful_driver):
    body = f"""{STREAMS_OF_OTHERS}
block = allocator.malloc(30 << 20, streams[0].value)
allocator.free(block)
cuda.cuStreamDestroy_v2(streams[0])
print(allocator.malloc(30 << 20, allotment.Stream(allocator)) == block, allocator.stats()["dense.waits"])
"""
    done = run(forgetful_driver, "-c", body)
    assert done.stdout == "False 0\n", done.stderr


@pytest.mark.parametrize("without", ["", "registering"])
def test_contents_come_back_whichever_way_the_driver_pins_memory(driver, without):
    body = """
import allotment
allocator = allotment.Allocator("cuda:0")
with allotment.tag("weights"):
    blocks = [allocator.malloc(size) for size in (70 << 20, 3 << 20, 512)]
stream = allotment.Stream(allocator)
for value, block in enumerate(blocks):
    allocator.copy(block, bytes([value]) * 512, 512, stream)
    stream.synchronize()
for _ in range(3):
    allocator.pause("weights")
    allocator.resume("weights")
for block in blocks:
    back = bytearray(512)
    allocator.copy(back, block, 512, stream)
    stream.synchronize()
    print(set(back))
"""
    done = run(driver, "-c", body, FAKE_CUDA_WITHOUT=f"fabric,{without}")
    assert done.stdout == "{0}\n{1}\n{2}\n", done.stderr


SWEEP = """
import ctypes, itertools, sys
import allotment
from allotment._allocators.caching import copying
from allotment.errors import AllotmentError

settings, step = sys.argv[1], int(sys.argv[2])
driver = ctypes.CDLL("libcuda.so.1")
copying.choose(lanes=1, span=256 << 10)     # one thread: the calls come in the same order each time
allocator = allotment.Allocator("cuda:0", settings=settings)
stream = allotment.Stream(allocator)
with allotment.tag("model"):
    pool = allocator.pool()
    blocks = {allocator.malloc(size): size for size in (600 << 10, 700)}
    with pool:
        blocks[allocator.malloc(300 << 10)] = 300 << 10

def contents():
    for block, size in blocks.items():
        back = bytearray(size)
        allocator.copy(back, block, size, stream)
        stream.synchronize()
        yield bytes(back)

def is_asleep():
    "Wholly, or wholly awake with its contents."
    allocator.inspection.check_invariants()
    if allocator.paused():
        return True
    assert allocator.sleep.tags()["model"]["paused"] == 0
    assert keep == "nothing" or list(contents()) == written
    return False

def refuse(number=0, times=0, answer=0):
    "Refuse calls from now on; gives how many were made since the last time."
    return driver.fake_refuse(ctypes.c_long(number), ctypes.c_long(times), answer)

written = []
for number, (block, size) in enumerate(blocks.items()):
    written.append((bytes(range(number, number + 251)) * (size // 251 + 1))[:size])
    allocator.copy(block, written[-1], size, stream)
    stream.synchronize()
cases = 0
for options in ({}, {"keep_host": True}, {"keep": "file"}, {"keep": "nothing"}):
    keep = options.get("keep")
    pause, resume = (lambda: allocator.pause("model", **options)), (lambda: allocator.resume("model"))
    for act, after in ((pause, resume), (resume, pause)):
        if act is resume:
            pause()
        refuse()
        act()
        calls = refuse()
        after()
        for number, times, answer in itertools.product(range(0, calls, step), (1, 1 << 60), (2, 999)):
            refuse(number, times, answer)
            try:
                act()
                done = True
            except AllotmentError:
                done = False
            refuse()
            assert is_asleep() or act is resume or not done, (options, number, times, answer)
            assert act is pause or is_asleep() == (not done), (options, number, times, answer)
            act()                           # from the start, or what was refused
            assert is_asleep() == (act is pause)
            if act is pause:
                assert allocator.stats()["reserved_bytes.all.current"] == 0
            after()
            cases += 1
        if act is resume:
            resume()
for block in blocks:
    allocator.free(block)
pool.close()
stream.destroy()
allocator.close()
print(cases)
"""


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ("placement:dense", 7),
        *(pytest.param(settings, 1, marks=pytest.mark.slow) for settings in ("", "expandable_segments:True")),
        pytest.param("placement:dense", 1, marks=pytest.mark.slow),
    ],
)
def test_whichever_call_of_the_driver_fails_a_tag_is_wholly_asleep_or_awake(driver, settings, step):
    done = run(driver, "-c", SWEEP, settings, str(step))
    assert done.stdout.strip().isdigit() and int(done.stdout) > 300 // step, done.stdout + done.stderr


def test_state_set_before_the_first_use_holds_for_each_device(driver):
    body = (
        "import sys, warnings\n"
        f"sys.path.append({str(TESTS)!r})\n"
        "from helpers.torch_stand_in import pretend\n"
        "pretend()\n"
        "import allotment.torch\n"
        "from allotment.torch import _replacements as replacements, _hooks as hooks\n"
        "allotment.torch.install(settings='', patch=True)\n"
        "warnings.simplefilter('error')\n"
        "replacements.set_allocator_settings('expandable_segments:True')\n"
        "replacements.enable_caching(False)\n"
        "for index in range(2):\n"
        "    allocator = hooks.allocator_of(index)\n"
        "    print(allocator.device.name, allocator.settings.expandable_segments, allocator.pools.caching)\n"
    )
    done = run(driver, "-c", body, FAKE_CUDA_DEVICES="2")
    assert done.stdout.splitlines() == ["cuda:0 True False", "cuda:1 True False"], done.stderr


def test_the_check_calls_every_function(driver):
    done = run(driver, "-m", "allotment._devices.cuda.check", FAKE_CUDA_DEVICES="2")
    assert done.returncode == 0, done.stdout
    assert "not tried" not in done.stdout
    assert "0 wrong" in done.stdout


def test_the_check_names_what_is_wrong(driver):
    done = run(driver, "-m", "allotment._devices.cuda.check", FAKE_CUDA_WITHOUT="descriptors")
    assert done.returncode == 1
    assert "1 wrong: cuMemCreate" in done.stdout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"FAKE_CUDA_INIT": "100"}, "cannot be initialized: CUDA_ERROR_100"),
        ({"FAKE_CUDA_INIT": "3"}, "was CUDA in use before this process was forked?"),
        ({"FAKE_CUDA_VERSION": "11040"}, "too old: it supports CUDA 11.4, 12.0 is needed"),
        ({"FAKE_CUDA_DEVICES": "0"}, "there is no CUDA device 0: the driver reports 0"),
    ],
)
def test_a_driver_that_cannot_be_used_is_one_clear_error(driver, settings, words):
    done = run(driver, "-c", CONSTRUCT, **settings)
    assert done.returncode == 1
    assert re.search(rf"DeviceError: .*{re.escape(words)}", done.stderr)


def test_a_library_that_lacks_functions_is_one_clear_error(build, tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int cuGetErrorName(void) { return 0; }\n")
    done = run(build(source), "-c", CONSTRUCT)
    assert "DeviceError: the CUDA driver has no function cuGetErrorString" in done.stderr


def test_a_file_that_is_not_a_library_is_one_clear_error(tmp_path):
    (tmp_path / NAME).write_text("not a library\n" * 100)
    done = run(tmp_path, "-c", CONSTRUCT)
    assert re.search(rf"DeviceError: there is no CUDA driver: .*{NAME}", done.stderr)


def test_a_child_of_a_process_that_could_not_open_the_driver_does_not_try(driver):
    """A real driver crashes there, or does not return."""
    program = f"""
import os
from allotment.errors import DeviceError

def reported():
    try:
        {CONSTRUCT}
    except DeviceError as error:
        return str(error)

print(reported(), flush=True)
child = os.fork()
if child == 0:
    print(reported(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = run(driver, "-c", program, FAKE_CUDA_INIT="100")
    in_parent, in_child = done.stdout.splitlines()
    assert "cannot be initialized" in in_parent
    assert "before this process was forked" in in_child
