"""One limit for the whole process: the figures that all callers get, and the memory that they get."""

import pytest

from helpers.preloaded import OPEN, output_of, run

TOTAL = 1 << 30  # of the driver made of host memory


def room_in(limit: int) -> int:
    return limit - limit // 64  # kept free for what the driver allocates itself


def test_the_driver_reports_the_limit_instead_of_the_device(driver, tmp_path):
    program = """
    print(*info())
    kept = allocate(100 * MIB)
    print(*info())
    """
    limit, context = 512 << 20, 64 << 20
    said = output_of(driver, tmp_path, program, "--limit", "512MiB", FAKE_CUDA_CONTEXT=str(context))
    room = room_in(limit)
    assert said == [f"{room - context} {limit}", f"{room - context - (100 << 20)} {limit}"]


@pytest.mark.parametrize("how", ["cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocAsync"])
def test_requests_beyond_the_limit_fail_as_out_of_memory_and_fit_again_after_a_free(driver, tmp_path, how):
    program = f"""
    how = {how!r}
    more = {{"cuMemAllocManaged": [1], "cuMemAllocAsync": [None]}}.get(how, [])
    release, rest = ("cuMemFreeAsync", [None]) if how == "cuMemAllocAsync" else ("cuMemFree_v2", [])
    got = []
    while (address := allocate(32 * MIB, how, *more)) > 0:
        got.append(address)
    print(len(got), address)
    assert free(got.pop(), release, *rest) == 0
    print(allocate(32 * MIB, how, *more) > 0, allocate(32 * MIB, how, *more))
    """
    said = output_of(driver, tmp_path, program, "--limit", "256MiB", FAKE_CUDA_CONTEXT=str(32 << 20))
    assert said == ["6 -2", "True -2"]


def test_the_context_and_modules_count(driver, tmp_path):
    program = """
    assert cuda.cuModuleLoadData(ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_uint64(100 * MIB))) == 0
    print(allocate(80 * MIB) > 0, allocate(40 * MIB))
    """
    said = output_of(driver, tmp_path, program, "--limit", "256MiB", FAKE_CUDA_CONTEXT=str(40 << 20))
    assert said == ["True -2"]


def test_memory_allocated_past_us_counts_as_soon_as_the_driver_reports_it(driver, tmp_path):
    program = """
    cuda.cuArrayCreate_v2(ctypes.byref(ctypes.c_void_p()), ctypes.byref(ctypes.c_size_t(200 * MIB)))
    print(allocate(56 * MIB), allocate(40 * MIB) > 0, allocate(20 * MIB))
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == ["-2 True -2"]


def test_a_request_of_a_library_makes_the_allocator_release_its_cache(driver, tmp_path):
    program = """
    allocator = allotment.current("cuda:0")
    block = allocator.malloc(200 * MIB)
    print(allocate(1024) > 0, allocate(100 * MIB, "cuMemAllocManaged", 1))
    allocator.free(block)
    print(allocator.stats()["reserved_bytes.all.current"] // MIB)
    print(allocate(100 * MIB, "cuMemAllocManaged", 1) > 0, allocator.stats()["reserved_bytes.all.current"] // MIB)
    """
    options = ["--limit", "256MiB", "--depth", "serve"]
    assert output_of(driver, tmp_path, program, *options) == ["True -2", "202", "True 2"]


@pytest.mark.parametrize("short_of", ["the limit", "the device"])
def test_at_depth_count_a_request_makes_the_shared_allocator_release_its_cache_too(driver, tmp_path, short_of):
    program = """
    allocator = allotment.current("cuda:0")
    allocator.free(allocator.malloc(900 * MIB))
    print(allocate(200 * MIB) > 0, allocator.stats()["reserved_bytes.all.current"] // MIB)
    """
    options = ["--limit", "1000MiB"] if short_of == "the limit" else []
    assert output_of(driver, tmp_path, program, *options) == ["True 0"]


def test_the_allocator_itself_is_under_the_limit_and_releases_its_cache_for_itself(driver, tmp_path):
    program = """
    allocator = allotment.Allocator("cuda:0")
    allocator.free(allocator.malloc(200 * MIB))
    block = allocator.malloc(220 * MIB)
    try:
        allocator.malloc(100 * MIB)
    except allotment.OutOfMemoryError as error:
        print("out of memory", allocator.stats()["reserved_bytes.all.current"] // MIB)
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == ["out of memory 220"]


def test_threads_together_never_get_more_than_the_limit(driver, tmp_path):
    program = """
    import threading
    counts = []
    def work():
        cuda.cuCtxPushCurrent_v2(context)
        got = 0
        while allocate(2 * MIB) > 0:
            got += 1
        counts.append(got)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(sum(counts))
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == [str(room_in(256 << 20) // (2 << 20))]


def test_a_limit_below_the_context_is_reported_and_ignored(driver, tmp_path):
    (tmp_path / "program.py").write_text(OPEN + "print(allocate(100 << 20) > 0)\n")
    done = run(
        driver, "-m", "allotment.preload", "--limit", "50MiB", tmp_path / "program.py", FAKE_CUDA_CONTEXT="104857600"
    )
    assert done.stdout == "True\n"
    assert done.stderr == (
        "allotment.preload: the limit of 50 MiB is below the 100 MiB that the context takes, and is ignored\n"
    )


def test_a_limit_of_nothing_is_said_and_not_kept(driver, tmp_path):
    (tmp_path / "program.py").write_text(OPEN + "print(allocate(100 << 20) > 0)\n")
    done = run(driver, "-m", "allotment.preload", "--limit", "0", tmp_path / "program.py")
    assert done.stdout == "True\n"
    assert done.stderr == "allotment.preload: a limit of 0 bytes is below the context, and is ignored\n"


@pytest.mark.parametrize(("name", "value"), [("ALLOTMENT_PRELOAD_LIMIT", "lots"), ("ALLOTMENT_PRELOAD", "deep")])
def test_an_invalid_variable_is_reported_and_ignored(driver, tmp_path, name, value):
    from allotment import preload

    (tmp_path / "program.py").write_text(OPEN + "print(allocate(1 << 20) > 0)\n")
    done = run(driver, tmp_path / "program.py", **{**preload.environment(), name: value})
    assert done.stdout == "True\n"
    assert len(done.stderr.splitlines()) == 1 and f"{name}={value}" in done.stderr


def test_what_the_drivers_pool_keeps_after_a_free_is_under_the_limit(driver, tmp_path):
    program = """
    cached = allocate(200 * MIB, "cuMemAllocAsync", None)
    assert free(cached, "cuMemFreeAsync", None) == 0
    print(allocate(200 * MIB) > 0, used_on_device() // MIB)
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == ["True 200"]


@pytest.mark.parametrize("during", ["cuMemFree_v2", "cuMemAlloc_v2"])
def test_a_measurement_while_another_thread_allocates_or_frees_lets_nobody_beyond_the_limit(driver, tmp_path, during):
    program = f"""
    def other_thread():
        while allocate(2 * MIB, "cuMemAllocManaged", 1) > 0: pass
    call = ctypes.CFUNCTYPE(None)(other_thread)
    first = allocate(100 * MIB) if {during!r} == "cuMemFree_v2" else 0
    cuda.fake_during({during.encode()!r}, call)
    first = free(first) if first else allocate(100 * MIB)
    allocate(90 * MIB)
    print(used_on_device() // MIB)
    """
    (used,) = output_of(driver, tmp_path, program, "--limit", "256MiB", FAKE_CUDA_CONTEXT=str(64 << 20))
    assert int(used) <= room_in(256 << 20) >> 20


def test_memory_of_a_graph_is_refused_beyond_the_limit_while_it_is_captured(driver, tmp_path):
    program = """
    captured, graph = stream(), ctypes.c_void_p()
    assert cuda.cuStreamBeginCapture_v2(captured, 1) == 0
    print([allocate(size * MIB, "cuMemAllocAsync", captured) > 0 for size in (300, 200)])
    print(cuda.cuStreamEndCapture(captured, ctypes.byref(graph)), allocate(30 * MIB) > 0)
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB") == ["[False, True]", "0 True"]


def test_chunks_of_another_device_than_the_current_one_are_counted_and_limited(driver, tmp_path):
    program = """
    def chunk(device, size):
        properties = (ctypes.c_int * 16)(1, 0, 1, device)
        made = ctypes.c_uint64()
        return cuda.cuMemCreate(ctypes.byref(made), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 1)
    print(chunk(1, 200 * MIB), chunk(1, 100 * MIB), preloaded().libraries(1)["ctypes"].driver // MIB)
    """
    assert output_of(driver, tmp_path, program, "--limit", "256MiB", FAKE_CUDA_DEVICES="2") == ["0 2 200"]
