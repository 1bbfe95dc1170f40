"""Every allocation is counted for the library that requested it, and every result of the driver is passed on."""

import ast
import resource

import pytest

from helpers.preloaded import output_of, run, run_beside

CONTEXT = 16 << 20


def test_plain_pitched_managed_and_stream_ordered_memory_is_counted_until_it_is_freed(driver, tmp_path):
    program = """
    addresses = [allocate(3 * MIB), allocate(2 * MIB, "cuMemAllocManaged", 1)]
    pitch, pitched = ctypes.c_size_t(), ctypes.c_uint64()
    sizes = ctypes.c_size_t(1000), ctypes.c_size_t(1024), 4
    print(cuda.cuMemAllocPitch_v2(ctypes.byref(pitched), ctypes.byref(pitch), *sizes))
    ordered = allocate(1000, "cuMemAllocAsync", None)
    print(held())
    for address in [*addresses, pitched.value]:
        assert free(address) == 0
    assert free(ordered, "cuMemFreeAsync", None) == 0
    print(held(), preloaded().libraries(0)["ctypes"].calls, preloaded().libraries(0)["ctypes"].peak // MIB)
    """
    # The driver takes whole pages for what is larger than one half of a page.
    assert output_of(driver, tmp_path, program) == ["0", f"{{'ctypes': {(4 + 2 + 2 << 20) + 1024}}}", "{} 4 8"]


def test_a_chunk_is_counted_as_long_as_a_handle_or_a_mapping_holds_it(driver, tmp_path):
    program = """
    class Properties(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("kind", ctypes.c_int), ("id", ctypes.c_int),
                    ("unused", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
    properties = Properties(type=1, kind=1)
    size = ctypes.c_size_t(4 * MIB)
    chunk, base = ctypes.c_uint64(), ctypes.c_uint64()
    print(cuda.cuMemCreate(ctypes.byref(chunk), size, ctypes.byref(properties), ctypes.c_uint64(0)), held())
    cuda.cuMemAddressReserve(ctypes.byref(base), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    print(cuda.cuMemMap(base, size, ctypes.c_size_t(0), chunk, ctypes.c_uint64(0)))
    print(cuda.cuMemRelease(chunk), held())
    print(cuda.cuMemUnmap(base, size), held())
    cuda.cuMemCreate(ctypes.byref(chunk), size, ctypes.byref(properties), ctypes.c_uint64(0))
    print(cuda.cuMemRelease(chunk), held())
    """
    here = "{'ctypes': 4194304}"
    assert output_of(driver, tmp_path, program) == [f"0 {here}", "0", f"0 {here}", "0 {}", "0 {}"]


# Each driver function that is replaced and that the tests' driver has, called by a program.
CALLS = """
place, word, other = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
size, none, answer = ctypes.c_size_t(2 * MIB), ctypes.c_uint64(0), ctypes.c_void_p()
properties, handle = (ctypes.c_int * 16)(1, 0, 1, 0), ctypes.create_string_buffer(64)
at, more, text = ctypes.byref(place), ctypes.byref(answer), ctypes.byref(ctypes.c_uint64(9))
reserved, chunk, mapped, unmapped = (ctypes.c_uint64() for _ in range(4))
cuda.cuMemAddressReserve(ctypes.byref(reserved), ctypes.c_size_t(4 * MIB), ctypes.c_size_t(0), none, none)
cuda.cuMemCreate(ctypes.byref(chunk), size, ctypes.byref(properties), none)
mapped.value = reserved.value + 2 * MIB
cuda.cuMemMap(mapped, size, ctypes.c_size_t(0), chunk, none)
plain, ordered = ctypes.c_uint64(allocate(MIB)), ctypes.c_uint64(allocate(MIB, "cuMemAllocAsync", None))
pool, kept = ctypes.c_void_p(), stream()
cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
second, third, popped = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
for made in (second, third):
    cuda.cuCtxCreate_v2(ctypes.byref(made), 0, 0)
    cuda.cuCtxPopCurrent_v2(ctypes.byref(popped))
calls = {
    "cuGetProcAddress": lambda call: call(b"cuMemAlloc", more, 12000, none),
    "cuGetProcAddress_v2": lambda call: call(b"cuMemAlloc", more, 12000, none, None),
    "cuMemAlloc_v2": lambda call: call(at, size),
    "cuMemAllocPitch_v2": lambda call: call(at, ctypes.byref(word), ctypes.c_size_t(9), ctypes.c_size_t(9), 4),
    "cuMemAllocManaged": lambda call: call(at, size, 1),
    "cuMemFree_v2": lambda call: call(plain),
    "cuMemAllocAsync": lambda call: call(at, size, None),
    "cuMemAllocAsync_ptsz": lambda call: call(at, size, None),
    "cuMemAllocFromPoolAsync": lambda call: call(at, size, pool, None),
    "cuMemFreeAsync": lambda call: call(ordered, None),
    "cuMemFreeAsync_ptsz": lambda call: call(ordered, None),
    "cuMemCreate": lambda call: call(at, size, ctypes.byref(properties), none),
    "cuMemRelease": lambda call: call(chunk),
    "cuMemMap": lambda call: call(reserved, size, ctypes.c_size_t(0), chunk, none),
    "cuMemUnmap": lambda call: call(mapped, size),
    "cuMemGetInfo_v2": lambda call: call(ctypes.byref(word), ctypes.byref(other)),
    "cuMemGetAddressRange_v2": lambda call: call(at, ctypes.byref(word), plain),
    "cuIpcGetMemHandle": lambda call: call(handle, plain),
    "cuModuleLoadData": lambda call: call(more, text),
    "cuLaunchCooperativeKernel": lambda call: call(
        ctypes.byref(ctypes.c_int(1)), 1, 1, 1, 1, 1, 1, 0, None, None
    ),
    "cuLaunchKernel": lambda call: call(ctypes.byref(ctypes.c_int(1)), 1, 1, 1, 1, 1, 1, 0, None, None, None),
    "cuStreamCreate": lambda call: call(more, 1),
    "cuStreamCreateWithPriority": lambda call: call(more, 1, 0),
    "cuStreamDestroy": lambda call: call(kept),
    "cuStreamDestroy_v2": lambda call: call(stream()),
    "cuDevicePrimaryCtxRetain": lambda call: call(more, 0),
    "cuDevicePrimaryCtxReset": lambda call: call(0),
    "cuDevicePrimaryCtxReset_v2": lambda call: call(0),
    "cuDevicePrimaryCtxRelease": lambda call: call(0),
    "cuDevicePrimaryCtxRelease_v2": lambda call: call(0),
    "cuCtxCreate": lambda call: call(more, 0, 0),
    "cuCtxCreate_v2": lambda call: call(more, 0, 0),
    "cuCtxDestroy": lambda call: call(second),
    "cuCtxDestroy_v2": lambda call: call(third),
}
"""


@pytest.mark.parametrize("depth", ["count", "serve"])
def test_a_failure_of_every_function_is_passed_on_as_it_is_and_changes_nothing(driver, tmp_path, depth):
    program = (
        CALLS
        + """
counted = set(preloaded().known())
present = {name for name in counted if hasattr(cuda, name)}
print(sorted(present - set(calls)), sorted(set(calls) - present))
before = held(), served(), cuda.fake_used()
for name, call in calls.items():
    os.environ["FAKE_CUDA_FAIL"] = name
    result = call(getattr(cuda, name))
    del os.environ["FAKE_CUDA_FAIL"]
    if result != 999 or (held(), served(), cuda.fake_used()) != before:
        print(name, result, held(), served(), before)
"""
    )
    options = ["--depth", depth, "--min-size", "1GiB"]  # small requests pass, so that the driver is asked
    assert output_of(driver, tmp_path, program, *options) == ["[] []"]


# A program of many calls; each call of the driver in it is refused once, in turn.
SWEEP = """
size, none, properties = ctypes.c_size_t(4 * MIB), ctypes.c_uint64(0), (ctypes.c_int * 16)(1, 0, 1, 0)
pool, word, other = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
cuda.fake_refuse.argtypes, cuda.fake_refuse.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_int], ctypes.c_long

def run():
    answers, place, chunk, base = [], ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    at = ctypes.byref(place)
    def call(name, *arguments):
        answers.append(getattr(cuda, name)(*arguments))
        return answers[-1] == 0
    def surely(name, *arguments):
        assert any(call(name, *arguments) for _ in range(3)), (name, answers)
    own = ctypes.c_void_p()
    surely("cuStreamCreate", ctypes.byref(own), 1)
    for name, more, release, rest in (
        ("cuMemAlloc_v2", (), "cuMemFree_v2", ()), ("cuMemAllocManaged", (1,), "cuMemFree_v2", ()),
        ("cuMemAllocAsync", (own,), "cuMemFreeAsync", (own,)),
        ("cuMemAllocFromPoolAsync", (pool, own), "cuMemFreeAsync", (None,)),
    ):
        if call(name, at, size, *more):
            surely(release, ctypes.c_uint64(place.value), *rest)
    if call("cuMemCreate", ctypes.byref(chunk), size, ctypes.byref(properties), none):
        surely("cuMemAddressReserve", ctypes.byref(base), size, ctypes.c_size_t(0), none, none)
        is_mapped = call("cuMemMap", base, size, ctypes.c_size_t(0), chunk, none)
        surely("cuMemRelease", chunk)
        if is_mapped:
            surely("cuMemUnmap", base, size)
        surely("cuMemAddressFree", base, size)
    call("cuMemGetInfo_v2", ctypes.byref(word), ctypes.byref(other))
    call("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_uint64(0)))
    call("cuLaunchKernel", ctypes.byref(ctypes.c_int(1)), 1, 1, 1, 1, 1, 1, 0, own, None, None)
    surely("cuStreamDestroy_v2", own)
    return answers

run()
cuda.fake_refuse(0, 0, 0)
run()
calls, bad = cuda.fake_refuse(0, 0, 0), []
for answer in (2, 999):
    for number in range(calls):
        cuda.fake_refuse(number, 1, answer)
        answers = run()
        cuda.fake_refuse(0, 0, 0)
        if not set(answers) <= {0, answer, 999} or [one for one in held() if one != "allotment"] or served():
            bad.append((answer, number, answers, held(), served()))
if preload.depth() == "serve":
    allotment.current("cuda:0").inspection.check_invariants()
    assert allotment.current("cuda:0").stats()["allocated_bytes.all.current"] == 0
print(calls > 20, bad)
"""


@pytest.mark.parametrize("options", ["count", "count --limit 900MiB", "serve", "serve --min-size 1GiB --limit 900MiB"])
def test_one_refused_call_changes_one_answer_at_most_and_leaves_nothing_in_the_ledger(driver, tmp_path, options):
    assert output_of(driver, tmp_path, SWEEP, "--depth", *options.split()) == ["True []"]


# The functions that only the library calls.
HELPERS = (
    "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent_v2", "cuCtxSynchronize", "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxGetState", "cuStreamQuery", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode",
    "cuDeviceGetDefaultMemPool", "cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuMemGetInfo_v2",
)  # fmt: skip


@pytest.mark.parametrize("depth", ["count", "serve"])
def test_the_librarys_own_driver_calls_may_fail_unseen_by_the_program(driver, tmp_path, depth):
    program = (
        CALLS
        + f"""
os.environ["FAKE_CUDA_FAIL"] = {",".join(HELPERS)!r}
print({{name: call(getattr(cuda, name)) for name, call in calls.items()}})
"""
    )
    options = ["--depth", depth, "--limit", "900MiB", "--min-size", "1GiB"]
    said = output_of(driver, tmp_path, program, *options)
    assert said == run(driver, tmp_path / "program.py").stdout.splitlines() and "'cuMemAlloc_v2': 0" in said[0]


@pytest.mark.parametrize("function", ["cuMemFree_v2", "cuMemFreeAsync"])
def test_a_free_that_failed_leaves_the_line_in_the_ledger(driver, tmp_path, function):
    program = f"""
    address = allocate(MIB, "cuMemAllocAsync", None) if {function!r}.endswith("Async") else allocate(2 * MIB)
    before = held()
    print(free(address, {function!r}, *([None] if {function!r}.endswith("Async") else [])), held() == before)
    print(free(12345 << 20), held() == before)
    """
    first, second = output_of(driver, tmp_path, program, FAKE_CUDA_FAIL=function)
    assert first == "999 True" and second in ("1 True", "999 True")


def test_memory_of_a_pool_on_the_host_is_not_the_devices(driver, tmp_path):
    program = """
    def pool(kind):
        properties, made = (ctypes.c_int * 32)(1, 0, kind, 0), ctypes.c_void_p()
        assert cuda.cuMemPoolCreate(ctypes.byref(made), ctypes.byref(properties)) == 0
        return made
    for kind in (1, 2):
        print(allocate(200 * MIB, "cuMemAllocFromPoolAsync", pool(kind), None) > 0, held())
    print(allocate(200 * MIB, "cuMemAllocFromPoolAsync", pool(2), None) > 0)
    """
    said = output_of(driver, tmp_path, program, "--limit", "256MiB")
    assert said == [f"True {{'ctypes': {200 << 20}}}"] * 2 + ["True"]


def test_without_a_context_the_driver_decides(driver, tmp_path):
    program = """
    cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    print(allocate(MIB), held())
    """
    assert output_of(driver, tmp_path, program) == ["-201 {}"]


LEDGER = """
image, function = ctypes.c_uint64({module}), ctypes.c_int(0)
allocator = allotment.current("cuda:0")
own = allocator.malloc(1000)
assert cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), ctypes.byref(image)) == 0
taken = allocate(6 * MIB, {how!r}, *{more})
for _ in range(3):
    assert cuda.cuLaunchKernel(ctypes.byref(function), 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
print(allocator.process())
"""


def test_the_parts_of_the_ledger_add_up_to_the_drivers_figure(driver, tmp_path):
    program = LEDGER.format(module=5 << 20, how="cuMemAlloc_v2", more=())
    (said,) = output_of(driver, tmp_path, program, FAKE_CUDA_CONTEXT=str(CONTEXT))
    found = ast.literal_eval(said)
    assert found == {
        "libraries": {"ctypes": 6 << 20, "allotment": 2 << 20},
        "context": CONTEXT,
        "modules": (5 << 20) + (2 << 20),  # its image, and the page that its kernel took when it was launched
        "unexplained": 0,
        "total": CONTEXT + (6 + 2 + 5 + 2 << 20),
    }


def test_another_process_is_shown_the_ledger(driver, tmp_path):
    program = """
    import subprocess
    kept = allotment.current("cuda:0").malloc(1000), allocate(6 * MIB)
    for form in (["--json"], []):
        command = [sys.executable, "-m", "allotment", "top", str(os.getpid()), *form]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "80"})
        print(json.loads(shown.stdout)["processes"][0]["devices"][0]["process"] if form else shown.stdout)
    """
    variables = {"FAKE_CUDA_CONTEXT": str(CONTEXT), "ALLOTMENT_MONITOR": "1"}
    first, *screen = output_of(driver, tmp_path, program, **variables)
    found = ast.literal_eval(first)
    assert found == {"library ctypes": 6 << 20, "library allotment": 2 << 20, "context": CONTEXT, "modules": 0,
                     "unexplained": 0}  # fmt: skip
    start = next(at for at, line in enumerate(screen) if "the whole process" in line)
    assert [line.split() for line in screen[start + 1 : start + 4]] == [
        ["6.0", "MiB", "library", "ctypes"], ["2.0", "MiB", "library", "allotment"], ["16.0", "MiB", "context"],
    ]  # fmt: skip


@pytest.mark.parametrize("has_history", [False, True])
def test_a_snapshot_carries_the_ledger_and_explain_prints_it(driver, tmp_path, has_history):
    program = f"""
    import subprocess
    allocator = allotment.current("cuda:0")
    if {has_history}:
        allocator.record_history("all")
    kept = allocator.malloc(1000), allocate(6 * MIB)
    allocator.history.dump_snapshot({str(tmp_path / "run.pickle")!r})
    for form in (["--json"], []):
        command = [sys.executable, "-m", "allotment", "explain", {str(tmp_path / "run.pickle")!r}, *form]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        print(json.loads(shown.stdout)["process"] if form else shown.stdout)
    """
    first, *screen = output_of(driver, tmp_path, program, FAKE_CUDA_CONTEXT=str(CONTEXT))
    assert ast.literal_eval(first)["library ctypes"] == 6 << 20
    start = next(at for at, line in enumerate(screen) if line.startswith("The whole process held 24.0 MiB"))
    assert [line.split()[-1] for line in screen[start + 1 : start + 4]] == ["ctypes", "allotment", "context"]


def test_what_the_drivers_pool_keeps_has_a_name(driver, tmp_path):
    program = (
        LEDGER.format(module=0, how="cuMemAllocAsync", more=(None,))
        + """
free(taken, "cuMemFreeAsync", None)
print(allocator.process()["libraries"])
"""
    )
    _, said = output_of(driver, tmp_path, program)
    assert ast.literal_eval(said)["driver pool"] == 6 << 20


def test_what_was_taken_past_us_is_unexplained(driver, tmp_path):
    program = """
    allocator = allotment.current("cuda:0")
    before = allocator.process()
    assert cuda.cuArrayCreate_v2(ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t(3 * MIB))) == 0
    after = allocator.process()
    print(before["unexplained"], after["unexplained"] // MIB, (after["total"] - before["total"]) // MIB)
    """
    assert output_of(driver, tmp_path, program, FAKE_CUDA_CONTEXT=str(CONTEXT)) == ["0 3 3"]


def test_a_process_that_was_not_started_so_gets_the_command():
    import allotment

    with allotment.Allocator("sim:1GiB") as allocator, pytest.raises(allotment.UnsupportedError) as caught:
        allocator.process()
    assert "python -m allotment.preload script.py" in str(caught.value)


def test_another_device_than_a_gpu_is_refused(driver, tmp_path):
    program = """
    try:
        allotment.Allocator("sim:1GiB").process()
    except allotment.UnsupportedError as error:
        print(error)
    """
    (said,) = output_of(driver, tmp_path, program)
    assert "not a CUDA device" in said


def test_a_forked_process_starts_with_an_empty_ledger(driver, tmp_path):
    program = """
    kept = allocate(2 * MIB)
    child = os.fork()
    if child == 0:
        print(held(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(held())
    """
    assert output_of(driver, tmp_path, program) == ["{}", "{'ctypes': 2097152}"]


def test_forks_beside_threads_that_allocate_do_not_hang(driver, tmp_path):
    program = """
    import threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)    # of a fork beside threads
    stop = threading.Event()
    def work():
        cuda.cuCtxPushCurrent_v2(context)
        while not stop.is_set():
            free(allocate(MIB))
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0 if held() == {} else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads: thread.join()
    print(held())
    """
    assert output_of(driver, tmp_path, program) == ["{}"]


@pytest.mark.threads
def test_threads_that_end_with_the_process_while_they_allocate_do_no_harm(driver, tmp_path):
    program = """
    import threading
    def work():
        cuda.cuCtxPushCurrent_v2(context)
        while True:
            free(allocate(MIB))
    for _ in range(3): threading.Thread(target=work, daemon=True).start()
    print("ends")
    """
    for depth in ("count", "serve"):
        assert output_of(driver, tmp_path, program, "--depth", depth) == ["ends"]


def test_thousands_of_live_allocations_are_found_again(driver, tmp_path):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most < 7000:
        pytest.skip(f"each allocation of this driver is an open file, and a process may open only {most}")
    program = """
    import random, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (7000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    addresses = [allocate(4096, "cuMemAllocAsync", None) for _ in range(6000)]
    print(held())
    random.Random(1).shuffle(addresses)
    for address in addresses[:3000]: assert free(address, "cuMemFreeAsync", None) == 0
    print(held())
    for address in addresses[3000:]: assert free(address, "cuMemFreeAsync", None) == 0
    print(held())
    """
    said = output_of(driver, tmp_path, program)
    assert said == [f"{{'ctypes': {6000 * 4096}}}", f"{{'ctypes': {3000 * 4096}}}", "{}"]


def test_stacks_are_counted_on_request(driver, tmp_path):
    program = """
    kept = [allocate(2 * MIB) for _ in range(3)]
    found = preload.stacks()
    print([(stack["bytes"], stack["calls"], len(stack["frames"]) > 2) for stack in found])
    """
    assert output_of(driver, tmp_path, program, "--stacks") == ["[(6291456, 3, True)]"]
    assert output_of(driver, tmp_path, program) == ["[]"]


@pytest.mark.parametrize("primary", [False, True])
def test_memory_that_ended_with_its_context_is_no_longer_counted(driver, tmp_path, primary):
    ways = (
        ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"] if primary else ["cuCtxDestroy"]
    )  # with and without a version
    ways += [f"{way}_v2" for way in ways]
    for end in ways:
        program = f"""
        second = ctypes.c_void_p()
        assert cuda.cuCtxCreate_v2(ctypes.byref(second), 0, 0) == 0
        kept = allocate(4 * MIB), allocate(2 * MIB, "cuMemAllocManaged", 1)
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        kept = allocate(10 * MIB)
        print(held())
        assert cuda.{end}({"0" if primary else "second"}) == 0
        print(held())
        """
        after = {"ctypes": (6 if primary else 10) << 20}
        assert output_of(driver, tmp_path, program) == [f"{{'ctypes': {16 << 20}}}", str(after)], end


def test_a_primary_context_that_others_still_hold_ends_nothing(driver, tmp_path):
    program = """
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    kept = allocate(10 * MIB)
    print(cuda.cuDevicePrimaryCtxRelease_v2(0), held())
    """
    assert output_of(driver, tmp_path, program) == ["0 {'ctypes': 10485760}"]


def test_a_limit_applies_afresh_after_a_context_ended(driver, tmp_path):
    program = """
    for _ in range(3):
        own = ctypes.c_void_p()
        assert cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == 0
        print(allocate(200 * MIB) > 0)
        assert cuda.cuCtxDestroy_v2(own) == 0
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == ["True", "True", "True"]


def test_a_release_that_failed_leaves_its_handle_in_the_ledger(driver, tmp_path):
    program = """
    size, chunk, base = ctypes.c_size_t(4 * MIB), ctypes.c_uint64(), ctypes.c_uint64()
    properties, none = (ctypes.c_int * 16)(1, 0, 1, 0), ctypes.c_uint64(0)
    cuda.cuMemCreate(ctypes.byref(chunk), size, ctypes.byref(properties), none)
    cuda.cuMemAddressReserve(ctypes.byref(base), size, ctypes.c_size_t(0), none, none)
    assert cuda.cuMemMap(base, size, ctypes.c_size_t(0), chunk, none) == 0
    os.environ["FAKE_CUDA_FAIL"] = "cuMemRelease"
    print(cuda.cuMemRelease(chunk))
    del os.environ["FAKE_CUDA_FAIL"]
    print(cuda.cuMemUnmap(base, size), held())
    print(cuda.cuMemRelease(chunk), held())
    """
    assert output_of(driver, tmp_path, program) == ["999", "0 {'ctypes': 4194304}", "0 {}"]


FINDS = """
#include <stdio.h>
#include "ledger.c"

int main(void) {
    size_t longest = 0;
    for (uint64_t at = 1; at <= 20000; at++) {
        Entry entry = {.key = at * STEP, .size = 512, .kind = KIND_PLAIN};
        ledger_add(&entry);
    }
    const Table* table = &tables[ADDRESSES];
    for (size_t at = 0; at < table->capacity; at++)
        if (table->entries[at].key) {
            size_t steps = (at - wanted_place(table, table->entries[at].key)) & (table->capacity - 1);
            if (steps > longest) longest = steps;
        }
    printf("%d\\n", longest < 100);
    return 0;
}
"""


@pytest.mark.parametrize("step", ["1", "512", "(2 * MIB)", "(1024 * MIB)"])
def test_an_address_is_found_in_a_few_steps_whatever_its_alignment(tmp_path, step):
    done = run_beside("ledger.c", tmp_path, f"#define STEP {step}\n{FINDS}")
    assert (done.stdout, done.stderr) == ("1\n", "")


REUSES = """
#include <stdio.h>
#include "ledger.c"

int main(void) {
    Entry chunk = {.key = 7, .size = 2 * MIB, .more = 1, .kind = KIND_CHUNK}, ended;
    Entry mapping = {.key = 8 * MIB, .size = 2 * MIB, .more = 7, .kind = KIND_MAPPING};
    int has_ended;
    ledger_add(&chunk);
    ledger_add(&mapping);
    ledger_chunk(7, -1, &ended);        /* released; the driver frees it at the unmapping, which is noted too late */
    ledger_add(&chunk);                 /* another thread's, in its place */
    mapping.key = 16 * MIB;
    ledger_add(&mapping);
    ledger_unmap(8 * MIB, &ended, &has_ended);
    printf("%d", has_ended);
    printf("%d", ledger_chunk(7, -1, &ended));
    ledger_unmap(16 * MIB, &ended, &has_ended);
    printf("%d\\n", has_ended);
    return 0;
}
"""


def test_an_unmapping_that_is_noted_late_does_not_end_the_next_chunk_with_that_handle(tmp_path):
    done = run_beside("ledger.c", tmp_path, REUSES)
    assert (done.stdout, done.stderr) == ("001\n", "")
