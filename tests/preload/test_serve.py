"""At depth `serve` memory comes from the process's allocator, in the order that CUDA guarantees."""

import pytest

from helpers.c_library import compiled
from helpers.preloaded import OPEN, output_of, run

SERVE = ("--depth", "serve")

HOLD = """
flag = ctypes.c_uint64(allotment.current("cuda:0").malloc(4))
cuda.cuMemsetD8Async(flag, 0, ctypes.c_size_t(4), None)

def hold(where):
    assert cuda.cuStreamWaitValue32_v2(where, flag, 1, 0) == 0

def release_held_streams():
    other = stream()
    assert cuda.cuStreamWriteValue32_v2(other, flag, 1, 0) == 0
"""


def test_a_block_comes_from_the_shared_allocator_under_the_name_of_its_library(driver, tmp_path):
    program = """
    address = allocate(3 * MIB)
    allocator = allotment.current("cuda:0")
    print(allocator.tenants()["other"]["blocks"], served(), allocator.inspection.base_allocation(address)[1] // MIB)
    print(free(address), served(), allocator.stats()["allocated_bytes.all.current"])
    print(allocate(3 * MIB) == address)
    allocator.inspection.check_invariants()
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["1 {'ctypes': 3145728} 20", "0 {} 0", "True"]


def test_the_ledger_divides_the_allocators_memory_among_its_tenants(driver, tmp_path):
    program = """
    kept = allocate(3 * MIB)
    allocator = allotment.current("cuda:0")
    mine = allocator.tenant("torch").malloc(5 * MIB)
    found = allocator.process()
    whole = sum(found["libraries"].values()) + found["context"]
    print(found["libraries"], found["total"] == whole, found["unexplained"])
    """
    said = output_of(driver, tmp_path, program, *SERVE)
    sizes = {"allotment": 32 << 20, "torch": 5 << 20, "ctypes": 3 << 20}
    assert said == [f"{sizes} True 0"]


WANTS_ROOM = {
    "a module": "cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_uint64(512 * MIB)))",
    "a kernel": "cuda.cuLaunchKernel(ctypes.byref(ctypes.c_int(0)), 1, 1, 1, 1, 1, 1, 0, None, None, None)",
    "managed memory": 'min(0, allocate(512 * MIB, "cuMemAllocManaged", 1))',
    "a chunk": "cuda.cuMemCreate(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(512 * MIB),"
    " ctypes.byref((ctypes.c_int * 16)(1, 0, 1, 0)), ctypes.c_uint64(0))",
}


@pytest.mark.parametrize("what", WANTS_ROOM)
def test_what_the_driver_has_no_room_for_gets_the_room_that_the_allocator_only_caches(driver, tmp_path, what):
    program = f"""
    blocks = []
    while (address := allocate(2 * MIB)) > 0:
        blocks.append(address)
    while allocate(2 * MIB, "cuMemAllocManaged", 1) > 0:
        pass
    full = {WANTS_ROOM[what]}
    for block in blocks:
        free(block)
    print(len(blocks) > 400, abs(full), {WANTS_ROOM[what]})
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True 2 0"]


@pytest.mark.parametrize("where", ["stream()", "None"], ids=["a stream", "the default stream"])
def test_a_plain_block_is_used_again_only_after_all_work_that_was_given(driver, tmp_path, where):
    program = (
        HOLD
        + f"""
address = allocate(3 * MIB)
busy = {where}
hold(busy)
cuda.cuMemsetD8Async(ctypes.c_uint64(address), 7, ctypes.c_size_t(100), busy)
print(free(address), allocate(3 * MIB) != address)
release_held_streams()
cuda.cuCtxSynchronize()
print(allocate(3 * MIB) == address)
allotment.current("cuda:0").inspection.check_invariants()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 True", "True"]


@pytest.mark.parametrize("how", [(), ("cuMemFreeAsync", "ctypes.c_void_p(2)")], ids=["a free", "a free on it"])
def test_a_block_is_used_again_only_after_work_on_the_streams_of_threads(driver, tmp_path, how):
    program = (
        HOLD
        + f"""
import threading
address = allocate(3 * MIB)
def work():
    cuda.cuCtxPushCurrent_v2(context)
    hold(ctypes.c_void_p(2))
    cuda.cuMemsetD8Async(ctypes.c_uint64(address), 7, ctypes.c_size_t(100), ctypes.c_void_p(2))
    if {bool(how)}:
        print(free(address, *{how[:1]}, ctypes.c_void_p(2)), end=" ")
worker = threading.Thread(target=work)
worker.start()
worker.join()
if not {bool(how)}:
    print(free(address), end=" ")
print(allocate(3 * MIB) != address)
release_held_streams()
cuda.cuCtxSynchronize()
print(allocate(3 * MIB) == address)
allotment.current("cuda:0").inspection.check_invariants()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 True", "True"]


def test_stream_ordered_memory_is_used_again_on_its_stream_at_once_and_elsewhere_later(driver, tmp_path):
    program = (
        HOLD
        + """
first, second = stream(), stream()
hold(first)
address = allocate(3 * MIB, "cuMemAllocAsync", first)
print(free(address, "cuMemFreeAsync", first), allocate(3 * MIB, "cuMemAllocAsync", first) == address)
hold(second)
print(free(address, "cuMemFreeAsync", second), allocate(3 * MIB, "cuMemAllocAsync", first) != address)
release_held_streams()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 True", "0 True"]


@pytest.mark.parametrize("name", ["cuStreamDestroy", "cuStreamDestroy_v2"])
def test_a_destroyed_stream_is_not_asked(driver, tmp_path, name):
    program = f"""
    gone = stream()
    address = allocate(3 * MIB)
    cuda.{name}(gone)
    print(free(address))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["0"]


def test_work_of_a_stream_that_was_destroyed_is_waited_for(driver, tmp_path):
    program = (
        HOLD
        + """
gone, word = stream(), ctypes.c_uint32.from_address(flag.value)
address = allocate(3 * MIB)
hold(gone)
cuda.cuMemsetD8Async(ctypes.c_uint64(address), 7, ctypes.c_size_t(100), gone)
cuda.cuStreamDestroy_v2(gone)
call = ctypes.CFUNCTYPE(None)(lambda: setattr(word, "value", 1))
cuda.fake_during(b"cuCtxSynchronize", call)         # without it, a wait would not end
print(free(address), word.value)
for _ in range(2):
    again = allocate(3 * MIB)
    word.value = 0
    cuda.fake_during(b"cuCtxSynchronize", call)
    print(again == address, free(again), word.value)
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 1", "True 0 0", "True 0 0"]


def test_a_free_waits_for_a_destroyed_stream_and_for_a_foreign_context(driver, tmp_path):
    program = (
        HOLD
        + """
gone, address, word = stream(), allocate(3 * MIB), ctypes.c_uint32.from_address(flag.value)
hold(gone)
cuda.cuStreamDestroy_v2(gone)
second, current, waits_in_second = ctypes.c_void_p(), ctypes.c_void_p(), []
assert cuda.cuCtxCreate_v2(ctypes.byref(second), 0, 0) == 0
assert cuda.cuStreamWaitValue32_v2(stream(), flag, 2, 0) == 0
cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

def wait():
    cuda.cuCtxGetCurrent(ctypes.byref(current))
    waits_in_second.append(current.value == second.value)
    word.value += 1
    cuda.fake_during(b"cuCtxSynchronize", call)

call = ctypes.CFUNCTYPE(None)(wait)
cuda.fake_during(b"cuCtxSynchronize", call)
print(free(address), waits_in_second)
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 [False, True]"]


def test_a_wait_that_the_driver_refuses_leaves_the_order_after_the_streams_that_are_left(driver, tmp_path):
    program = (
        HOLD
        + """
gone, busy, address = stream(), stream(), allocate(3 * MIB)
hold(gone)
cuda.cuStreamDestroy_v2(gone)
hold(busy)
os.environ["FAKE_CUDA_FAIL"] = "cuCtxSynchronize"
print(free(address), allocate(3 * MIB) != address)
release_held_streams()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 True"]


def test_streams_end_with_their_context_and_are_not_asked(driver, tmp_path):
    program = """
    second = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(ctypes.byref(second), 0, 0) == 0
    kept = stream()
    assert cuda.cuCtxDestroy_v2(second) == 0
    print(free(allocate(3 * MIB)))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["0"]


def test_a_free_waits_for_the_streams_of_contexts_that_the_allocator_cannot_record(driver, tmp_path):
    program = (
        HOLD
        + """
address, second, word = allocate(3 * MIB), ctypes.c_void_p(), ctypes.c_uint32.from_address(flag.value)
assert cuda.cuCtxCreate_v2(ctypes.byref(second), 0, 0) == 0
hold(stream())
cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
waited_in = ctypes.c_void_p()
def release_during_the_wait():
    cuda.cuCtxGetCurrent(ctypes.byref(waited_in))
    word.value = 1
call = ctypes.CFUNCTYPE(None)(release_during_the_wait)
cuda.fake_during(b"cuCtxSynchronize", call)
print(free(address), word.value, waited_in.value == second.value)
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 1 True"]


@pytest.mark.parametrize("current", ["no context", "another device"])
def test_a_free_waits_for_the_work_of_the_blocks_own_device_whatever_is_current(driver, tmp_path, current):
    program = (
        HOLD
        + f"""
address = allocate(3 * MIB)
hold(None)
if {current!r} == "no context":
    cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
else:
    second = ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(second), 1)
    cuda.cuCtxPushCurrent_v2(second)
print(free(address))
cuda.cuCtxPushCurrent_v2(context)
print(allocate(3 * MIB) == address)
release_held_streams()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE, FAKE_CUDA_DEVICES="2") == ["0", "False"]


def test_a_free_does_not_wait_for_the_streams_of_another_device(driver, tmp_path):
    program = (
        HOLD
        + """
second = ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(second), 1)
cuda.cuCtxPushCurrent_v2(second)
hold(stream())
cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
address = allocate(3 * MIB)
print(free(address), allocate(3 * MIB) == address)
release_held_streams()
"""
    )
    assert output_of(driver, tmp_path, program, *SERVE, FAKE_CUDA_DEVICES="2") == ["0 True"]


def test_after_the_primary_context_ended_the_driver_serves(driver, tmp_path):
    program = """
    kept = allocate(3 * MIB)
    assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    print(served(), allocate(3 * MIB) > 0, served(), held())
    """
    assert output_of(driver, tmp_path, program, *SERVE) == [f"{{}} True {{}} {{'ctypes': {4 << 20}}}"]


def test_memory_of_a_graph_is_the_drivers(driver, tmp_path):
    program = """
    captured, graph = stream(), ctypes.c_void_p()
    allocate(1024)
    assert cuda.cuStreamBeginCapture_v2(captured, 1) == 0
    before = served()
    address = allocate(3 * MIB, "cuMemAllocAsync", captured)
    print(address > 0, served() == before, held().get("ctypes", 0))
    print(free(address, "cuMemFreeAsync", captured), cuda.cuStreamEndCapture(captured, ctypes.byref(graph)))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True True 0", "0 0"]


def test_a_free_beside_a_capture_does_not_disturb_the_capture(driver, tmp_path):
    program = """
    captured, graph, address = stream(), ctypes.c_void_p(), allocate(3 * MIB)
    assert cuda.cuStreamBeginCapture_v2(captured, 1) == 0
    print(free(address), cuda.cuStreamEndCapture(captured, ctypes.byref(graph)))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 0"]


def test_managed_memory_and_requests_below_min_size_are_never_served(driver, tmp_path):
    program = """
    kept = [allocate(2 * MIB, "cuMemAllocManaged", 1), allocate(MIB), allocate(3 * MIB)]
    print(served(), held()["ctypes"])
    """
    said = output_of(driver, tmp_path, program, *SERVE, "--min-size", "2MiB")
    assert said == [f"{{'ctypes': {3 << 20}}} {4 << 20}"]


def test_the_range_of_a_served_block_is_its_own_also_from_its_middle(driver, tmp_path):
    program = """
    first, address = allocate(3 * MIB), allocate(3 * MIB)
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    for at in (address, address + 12345):
        print(cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(at)),
              base.value == address, size.value)
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["0 True 3145728", "0 True 3145728"]


def test_sharing_a_served_block_is_refused_with_a_line(driver, tmp_path):
    share = "cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_uint64(allocate(3 << 20)))"
    (tmp_path / "program.py").write_text(f"{OPEN}print({share})\n")
    done = run(driver, "-m", "allotment.preload", *SERVE, tmp_path / "program.py")
    assert done.stdout == "801\n", done.stderr
    assert len(done.stderr.splitlines()) == 1 and "--min-size" in done.stderr


def test_out_of_memory_is_the_drivers_error(driver, tmp_path):
    program = """
    print(allocate(2 << 30), allocate(MIB) > 0)
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["-2 True"]


def test_an_address_that_is_unknown_or_free_already_is_refused_also_where_a_segment_begins(driver, tmp_path):
    program = """
    address = allocate(MIB)
    print(allotment.current("cuda:0").inspection.base_allocation(address)[0] == address)
    print(free(0x1234), free(address), free(address))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True", "1 0 1"]


def test_a_child_that_does_not_import_us_passes_through(driver, tmp_path):
    code = OPEN + "print(allocate(3 << 20) > 0, ctypes.CDLL(None).allotment_preload_depth())"
    program = f"""
    import subprocess
    print(subprocess.run([sys.executable, "-c", {code!r}], capture_output=True, text=True, check=True).stdout.strip())
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True 1"]


@pytest.mark.threads
def test_threads_that_take_and_free_together_leave_the_allocator_in_order(driver, tmp_path):
    program = """
    import random, threading
    def work(seed):
        cuda.cuCtxPushCurrent_v2(context)
        draw, kept = random.Random(seed), []
        for _ in range(300):
            if kept and draw.random() < 0.5:
                assert free(kept.pop(draw.randrange(len(kept)))) == 0
            else:
                kept.append(allocate(draw.choice([512, 5000, MIB, 3 * MIB])))
        for address in kept:
            assert address > 0 and free(address) == 0
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    allocator = allotment.current("cuda:0")
    allocator.inspection.check_invariants()
    print(served(), allocator.stats()["allocated_bytes.all.current"])
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["{} 0"]


def test_a_device_that_cannot_be_served_is_reported_once_and_passes_through(driver, tmp_path):
    (tmp_path / "program.py").write_text(f"{OPEN}print(allocate(3 << 20) > 0, allocate(3 << 20) > 0)\n")
    done = run(driver, "-m", "allotment.preload", *SERVE, tmp_path / "program.py", ALLOTMENT_CONF="no_such_key:1")
    assert done.stdout == "True True\n"
    assert len(done.stderr.splitlines()) == 1 and "cuda:0 is not served" in done.stderr


LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int has_lock, result = -1;

static void* allocate(void* context) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*push)(void*) = dlsym(driver, "cuCtxPushCurrent_v2");
    int (*take)(uint64_t*, size_t) = dlsym(driver, "cuMemAlloc_v2");
    uint64_t address;
    push(context);
    pthread_mutex_lock(&lock);
    has_lock = 1;
    result = take(&address, 3 << 20);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int result_under_lock(void* context) {
    pthread_t thread;
    pthread_create(&thread, NULL, allocate, context);
    while (!has_lock) sched_yield();
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    return result;
}
"""


def test_a_request_under_a_lock_that_the_interpreters_holder_waits_for_is_not_stuck(driver, tmp_path):
    (tmp_path / "caller.c").write_text(LOCKS)
    library = compiled(tmp_path / "libcaller.so", tmp_path / "caller.c", "-ldl", "-lpthread")
    program = f"""
    print(ctypes.PyDLL({str(library)!r}).result_under_lock(context))
    address = allocate(3 * MIB)
    while not served():         # as soon as the other thread has set up
        assert free(address) == 0
        address = allocate(3 * MIB)
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["0"]


def test_a_first_request_of_a_thread_that_holds_the_interpreter_is_served(driver, tmp_path):
    program = """
    print(allocate(3 * MIB, library=ctypes.PyDLL("libcuda.so.1")) > 0, served())
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True {'ctypes': 3145728}"]
