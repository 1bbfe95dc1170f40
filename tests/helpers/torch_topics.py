"""What PyTorch's allocator reports to listeners, topic by topic: a program that prints it as JSON.

    python torch_topics.py native|deep LIBRARY

LIBRARY is torch_listener.cc, compiled. After the installation the program does not depend on the allocator. It prints
only those addresses and times that do not depend on chance.
"""

import ctypes
import itertools
import json
import sys
import tempfile
import threading

MODE, LIBRARY = sys.argv[1:]
if MODE == "deep":
    import allotment.torch

    allotment.torch.install("deep")
import torch  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
listener = ctypes.CDLL(LIBRARY)
for name in ("heard", "base", "largest", "free", "allocate", "facts", "snapshot"):
    getattr(listener, f"listener_{name}").restype = ctypes.c_char_p


def ask(name, *arguments):
    return getattr(listener, f"listener_{name}")(*arguments).decode()


def empty(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def heard_of(work, entries=True, gauges=False):
    """Return the lines, each once if it is repeated. Natively a snapshot is an event on each device, even on an unused
    one, and always names device 0; ours are of the devices in use.
    """
    ask("heard")
    listener.listener_hear(entries, gauges, -1)
    try:
        work()
    finally:
        listener.listener_hear(0, 0, -1)
    return [line for line, _ in itertools.groupby(ask("heard").splitlines())]


def record(**arguments):
    torch.cuda.memory._record_memory_history(**arguments)


def snapshot():
    return torch.cuda.memory._snapshot()


def stop():
    torch.cuda.memory._record_memory_history(enabled=None)


def everything():
    """Cause some events of each action."""
    one, two = empty(3 * MIB), empty(500)
    stream = torch.cuda.Stream()
    two.record_stream(stream)
    del two, one
    torch.cuda.synchronize()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = empty(2 * MIB)
    del kept, pool
    too_much()
    torch.cuda.memory_snapshot()
    torch.cuda.empty_cache()


def too_much():
    try:
        empty((1 << 40) + 1)
    except torch.OutOfMemoryError as error:
        return str(error)


def trackers():
    reported = [heard_of(everything)]
    for arguments in ({"context": "state"}, {"context": "alloc"}, {"context": "all"}):
        record(stacks="python", **arguments)
        reported.append(heard_of(everything))
        stop()
    record(stacks="python", skip_actions=["alloc", "free_requested"])
    reported.append(heard_of(everything))
    reported.append([entry["action"] for entry in snapshot()["device_traces"][0]])
    stop()
    return reported


def a_tracker_that_throws():
    """Last, because natively it loses memory."""
    reported = []
    for number, action in enumerate((0, 1, 3)):
        listener.listener_hear(0, 0, action)
        reported.append(ask("allocate", ctypes.c_size_t((40 + 4 * number) * MIB)))
        listener.listener_hear(0, 0, -1)
    torch.cuda.empty_cache()
    return reported


def gauges():
    def work():
        one = empty(3 * MIB)
        two = empty(500)
        del one
        torch.cuda.empty_cache()
        two = empty(5000)
        del two

    return heard_of(work, entries=False, gauges=True)


def annotations():
    record(stacks="python", global_record_annotations=True)
    with torch.profiler.record_function("outer"), torch.profiler.record_function("inner"):
        tensor = empty(10)
    listener.listener_annotate(b"key", b"value")
    del tensor
    reported = [snapshot()["external_annotations"]]
    stop()
    listener.listener_annotate(b"not", b"recorded")
    reported.append(snapshot()["external_annotations"])
    record(stacks="python", clear_history=True)
    reported.append(snapshot()["external_annotations"])
    record(stacks="python", max_entries=2)
    for number in (b"1", b"2", b"3"):
        listener.listener_annotate(b"number", number)
    reported.append(snapshot()["external_annotations"])
    stop()
    return [told_without_times(found) for found in reported]


def told_without_times(annotations):
    return [{key: value for key, value in sorted(found.items()) if key != "time_us"} for found in annotations]


def compile_contexts():
    def now():
        empty(100)
        return [entry["compile_context"] for entry in snapshot()["device_traces"][0]][-1]

    def elsewhere():
        reported.append(["in another thread", now()])

    listener.listener_push(b"before the history")
    record(stacks="python")
    reported = [now()]
    listener.listener_push(b"0/0")
    reported.append(now())
    listener.listener_push(b"1/0")
    reported.append(now())
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    listener.listener_pop()
    reported.append(now())
    stop()
    listener.listener_push(b"not recorded")
    listener.listener_pop()
    record(stacks="python")
    reported.append(now())
    listener.listener_pop()
    reported.append(now())
    listener.listener_pop()
    reported.append(now())
    stop()
    return reported


def user_metadata():
    def now():
        tensor = empty(100)
        del tensor
        metadata = [entry["user_metadata"] for entry in snapshot()["device_traces"][0]]
        return [torch.cuda.memory._get_memory_metadata(), metadata[-3:]]

    def elsewhere():
        reported.append(["in another thread", *now()])
        torch.cuda.memory._set_memory_metadata("the thread's")
        reported.append(["in another thread", *now()])

    torch.cuda.memory._set_memory_metadata("before the history")
    record(stacks="python")
    reported = [now()]
    torch.cuda.memory._set_memory_metadata("step 1")
    reported.append(now())
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    reported.append(now())
    torch.cuda.memory._set_memory_metadata("ä ← two\nlines")
    reported.append(now())
    torch.cuda.memory._set_memory_metadata("")
    reported.append(now())
    stop()
    return reported


def annotated_blocks():
    """Notes on live blocks, from 2.14 on."""
    if not hasattr(torch.cuda.memory, "_annotate_tensor"):
        return []
    reported = [torch.cuda.memory._memory_metadata_supported()]
    for recording in (False, True):
        if recording:
            record(stacks="python")
        tensor = empty(1000)
        address = tensor.untyped_storage().data_ptr()
        torch.cuda.memory._annotate_tensor(tensor[5:], "kept for later")
        del tensor
        for dead in (address, 0):
            try:
                torch._C._cuda_annotateMemory(dead, "too late")
            except RuntimeError as error:
                reported.append(str(error).splitlines()[0].replace(hex(address), "ADDRESS"))
        reported.append([[entry["action"], entry["user_metadata"]] for entry in snapshot()["device_traces"][0]])
    stop()
    return reported


def observers():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(["first", *facts]))
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *facts: seen.append(["second", torch.cuda.memory_stats()["num_ooms"] > 0])
    )
    kept = empty(30 * MIB)
    texts = [too_much()]
    torch.cuda.set_per_process_memory_fraction(0.3)
    texts.append(too_much())
    texts.append(torch.cuda.get_per_process_memory_fraction())
    try:
        texts.append(empty(400 * MIB).numel())
    except torch.OutOfMemoryError as error:
        texts.append(str(error))
    torch.cuda.set_per_process_memory_fraction(1.0)
    try:
        empty(1 << 61)
    except RuntimeError as error:
        texts.append([type(error).__name__, str(error).splitlines()[0]])
    del kept
    torch.cuda.empty_cache()
    return [seen, texts]


def named(frames):
    """Return PyTorch's frames of a stack, without those of the allocator and of the gathering. Frames without a name
    are functions inside a library, such as the allocator's.
    """
    frames = [frame for frame in frames if frame["name"] != "??"]
    own = ("CUDACachingAllocator::Native", "allotment::", "__pyx_", "torch::unwind", "CapturedTraceback", "gather")
    numbers = [number for number, frame in enumerate(frames) if any(name in frame["name"] for name in own)]
    return [[frame["name"], frame["line"]] for frame in frames[max(numbers, default=-1) + 1 :]]


def recorder(stacks, context):
    torch.cuda.empty_cache()
    record(stacks=stacks, context=context)
    kept = empty(1000)
    gone = empty(3 * MIB)
    del gone
    torch.cuda.empty_cache()
    too_much()
    reported = snapshot()
    stop()
    del kept
    torch.cuda.empty_cache()
    return {
        "history": [
            [entry["action"], named(entry["frames"]) if "frames" in entry else None]
            for entry in reported["device_traces"][0]
        ],
        "segments": [
            [named(segment["frames"]), [named(block["frames"]) for block in segment["blocks"]]]
            for segment in reported["segments"]
        ],
    }


def recorder_modes():
    return {
        f"{stacks} {context}": recorder(stacks, context)
        for stacks in ("python", "all")
        for context in ("state", "alloc", "all", None)
    }


def kinds_of_history():
    reported = []
    for enabled in ("state", "all", None):
        record(enabled=enabled, stacks="python", max_entries=3)
        for _ in range(5):
            empty(100)
        found = snapshot()
        reported.append([listener.listener_is_recording(), [entry["action"] for entry in found["device_traces"][0]]])
    record(stacks="python", max_entries=5, clear_history=True)
    reported.append(len(snapshot()["device_traces"][0]))
    stop()
    return reported


def profiler():
    from torch.profiler import ProfilerActivity, profile

    kept = empty(5 * MIB)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        tensor = empty(3 * MIB + 1)
        del tensor, kept
        too_much()
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f"{folder}/trace.json")
        with open(f"{folder}/trace.json") as file:
            events = json.load(file)["traceEvents"]
    return [
        [event["name"], {key: value for key, value in event["args"].items() if key != "Ev Idx"}]
        for event in sorted(events, key=lambda event: event.get("ts", 0))
        if event["name"] in ("[memory]", "[OutOfMemory]")
    ]


def gpu_trace():
    from torch.cuda import _gpu_trace

    seen = []
    _gpu_trace.register_callback_for_memory_allocation(lambda address: seen.append(["allocated", address]))
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: seen.append(["freed", address]))
    torch._C._activate_gpu_trace()
    tensor = empty(100)
    address = tensor.data_ptr()
    del tensor
    seen.append(ask("free", ctypes.c_void_p(64)).splitlines()[0])
    return [[kind[0], kind[1] == address] if isinstance(kind, list) else kind for kind in seen]


def questions():
    torch.cuda.empty_cache()
    one, two = empty(3 * MIB), empty(100 * KIB)
    reported = [
        ask("facts"),
        ask("base", ctypes.c_void_p(one.data_ptr())),
        ask("base", ctypes.c_void_p(two.data_ptr())),
        ask("base", ctypes.c_void_p(one.data_ptr() + 1)).split(":")[0],
        ask("largest", 0, ctypes.c_size_t(0)),
        ask("largest", 0, ctypes.c_size_t(1)),
        ask("snapshot", 0),
        ask("snapshot", 1),
        ask("allocate", ctypes.c_size_t(0)),
    ]
    for device in (7, -1):
        for question in (torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats):
            try:
                question(device)
            except (RuntimeError, UnicodeDecodeError):  # PyTorch writes the device's number as a byte into the text
                reported.append("refused")
    return reported


def free_memory_callbacks():
    torch.cuda.empty_cache()
    before = listener.listener_runs()
    one, two, three = empty(100), empty(100), empty(3 * MIB)
    too_much()
    del one, two, three
    return listener.listener_runs() - before


def devices_not_used_yet():
    torch.cuda.empty_cache()
    reported = [torch.cuda.memory_stats(1)["num_sync_all_streams"], torch.cuda.memory_reserved(1)]
    torch.cuda.reset_accumulated_memory_stats(1)
    reported.append(torch.cuda.memory_stats(1))
    torch.cuda.set_per_process_memory_fraction(0.25, 1)
    reported.append(torch.cuda.get_per_process_memory_fraction(1))
    record(stacks="python")
    with torch.cuda.device(1):
        torch.cuda.memory._set_memory_metadata("of device 1")
        tensor = empty(10)
        del tensor
    reported.append(torch.cuda.memory._get_memory_metadata())
    empty(10)
    reported.append([[entry["action"], entry["user_metadata"]] for entry in snapshot()["device_traces"][1]])
    reported.append([[entry["action"], entry["user_metadata"]] for entry in snapshot()["device_traces"][0]])
    torch.cuda.memory._set_memory_metadata("")
    stop()
    return reported


def caching_switched_off():
    def now():
        stats = torch.cuda.memory_stats()
        return [stats[f"{key}.all.current"] for key in ("allocated_bytes", "reserved_bytes", "allocation", "segment")]

    torch.cuda.empty_cache()
    failed = torch.cuda.memory_stats()["num_ooms"]
    cached = empty(3 * MIB)
    reported = [now()]
    torch.cuda.caching_allocator_enable(False)
    direct = empty(5 * MIB)
    reported.append([ask("facts"), now(), torch.cuda.mem_get_info()[0]])
    del cached
    reported.append(now())
    try:
        empty(1 << 40)
    except RuntimeError as error:
        reported.append(
            [type(error).__name__, str(error).splitlines()[0], torch.cuda.memory_stats()["num_ooms"] - failed]
        )
    torch.cuda.caching_allocator_enable(True)
    del direct
    reported.append([now(), torch.cuda.mem_get_info()[0]])
    return reported


def reserve_classes():
    """Print how much address space segments of streams reserve, which the distance to the next segment shows."""
    settings = torch._C._accelerator_setAllocatorSettings

    def reserve(stream, name, fraction=0.0):
        return listener.listener_reserve(ctypes.c_void_p(stream), name, ctypes.c_double(fraction))

    if not reserve(0, b""):
        return []
    settings("expandable_segments:True,expandable_segments_reserve_by_class:[small:0.25]")
    reserve(0, b"by code", 0.5)
    streams = [torch.cuda.Stream() for _ in range(5)]
    for stream, name in zip(streams, (b"small", b"by code", b"unknown", b"", b""), strict=True):
        reserve(stream.cuda_stream, name)
    tensors = []
    for stream in streams:
        with torch.cuda.stream(stream):
            tensors.append(empty(3 * MIB))
    places = [tensor.data_ptr() for tensor in tensors]
    settings("expandable_segments:False")
    return [(later - place) // MIB for place, later in itertools.pairwise(places)]


TOPICS = (
    gauges, questions, trackers, annotations, compile_contexts, user_metadata, annotated_blocks,
    observers, recorder_modes, kinds_of_history, profiler, gpu_trace, free_memory_callbacks, devices_not_used_yet,
    caching_switched_off, a_tracker_that_throws, reserve_classes,
)  # fmt: skip

if __name__ == "__main__":
    listener.listener_gauges()
    torch.cuda.init()
    listener.listener_track()
    print(json.dumps({topic.__name__: topic() for topic in TOPICS}))
