"""Sleep and wake on a GPU: how fast, what the host pays for it, beside the machine's own limits and torch_memory_saver.

    python benchmarks/gpu/pausing.py [--parts machine ours peer variants] [--sizes 1 10 40] [--seconds 150] [--out FILE]
    python benchmarks/gpu/pausing.py --parts cycles --cycles 1000 --sizes 0.0625
    python benchmarks/gpu/pausing.py --parts torch

`machine`: pinned copies over the bus in both directions, and all cores at once that copy into fresh large pages, which
bounds the first sleep. `ours`: each size and each place to keep contents, in a process of its own, first cycle and the
median of the later ones; the memory is overwritten while it sleeps and compared byte by byte in the end. `peer`: the
same for torch_memory_saver, if it can be imported, in a process for each place, with sums compared. `variants`: threads
and sizes of buffers. `cycles`: many cycles of a small tag, compared each time. `torch`: a model whose outputs are
compared bit by bit, also by a captured graph, and (with transformers) a GPT-2 that is trained under the sanitizer. A
part that `--seconds` leaves no time for is left out and named. The rows of `ours` are compared with the goals below,
which the `machine` of the same run lowers where it is slower.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import allotment
from allotment._allocators.caching import copying

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLOCK = 64 * MIB
HUGE = 2 * MIB
CORES = len(os.sched_getaffinity(0))
PLACES: dict[str, dict[str, Any]] = {
    "host": {},
    "keep_host": {"keep_host": True},
    "nothing": {"keep": "nothing"},
    "file": {"keep": "file"},
}
PEER_PLACES = ("pinned", "retained", "mmap", "disk")
FILE_LIMIT = 10 * GIB  # a disk is far slower than the bus
GOAL_FIRST, GOAL_LATER = 45, 50  # GB/s: of the first cycle, and of later ones with `keep_host`
SHARE = 0.9  # of what the machine itself can do, where that is less
RING = 72 * MIB  # the buffers, and what the driver and Python take beside them

libc = ctypes.CDLL(None)
libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


# --- what the host has ------------------------------------------------------------------------------------------------


def status(key: str, file: str = "/proc/self/status") -> int:
    """Bytes in a line of /proc."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * KIB
    return 0


def resident() -> int:
    return status("VmRSS")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def available() -> int:
    return status("MemAvailable", "/proc/meminfo")


class Pages:
    """Fresh pages, large ones where the system has any."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.address = -(-first // HUGE) * HUGE
        self.map.madvise(mmap.MADV_HUGEPAGE, self.address - first, size // HUGE * HUGE)


def shared_out(size: int, piece: int, threads: int, work: Callable[[int, int], object]) -> float:
    """Seconds until threads have done all pieces, each the next one: `work(start, length)`."""
    starts = iter(range(0, size, piece))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            work(start, min(piece, size - start))

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result()
    return time.perf_counter() - begin


# --- the machine's own limits -----------------------------------------------------------------------------------------


def touched(size: int) -> float:
    """Write to as much memory as the largest copy takes; return how fast that was, in GB/s.

    A virtual machine may only get its memory now, at a tenth of the speed. No copy of `ours` is to pay for that.
    """
    pages = Pages(size)
    return size / shared_out(size, HUGE, CORES, lambda at, length: ctypes.memset(pages.address + at, 1, length)) / 1e9


def machine(size: int, most: int) -> Iterator[dict[str, Any]]:
    yield {"machine": "memory touched for the first time", "GB_per_s": touched(most)}
    allocator = allotment.Allocator("cuda:0")
    pinned = allotment.PinnedAllocator("cuda:0")
    piece = min(size, GIB)
    host, block, stream = pinned.empty(piece), allocator.malloc(piece), allotment.Stream(allocator)
    for name, target, source in (("pinned to device", block, host), ("device to pinned", host, block)):
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            allocator.copy(target, source, piece, stream)
            stream.synchronize()
            best = min(best, time.perf_counter() - begin)
        yield {"machine": name, "GB_per_s": piece / best / 1e9}
    source = Pages(BLOCK)
    ctypes.memset(source.address, 1, BLOCK)
    for threads in sorted({1, 4, 8, CORES}):
        if threads > CORES:
            continue
        found = {"machine": f"copies into fresh large pages, {threads} threads"}
        target = Pages(size)
        for name in ("GB_per_s", "again_GB_per_s"):
            seconds = shared_out(
                size, HUGE, threads,
                lambda start, length, to=target: ctypes.memmove(
                    to.address + start, source.address + start % BLOCK, length),
            )  # fmt: skip
            found[name] = size / seconds / 1e9
        begin = time.perf_counter()
        del target
        found["unmap_GB_per_s"] = size / (time.perf_counter() - begin) / 1e9
        yield found
    for threads, pin in ((1, 256 * MIB), (4, 64 * MIB), (CORES, 64 * MIB), (CORES, 16 * MIB)):
        yield pinned_in_place(allocator, block, piece, size, threads, pin)


def pinned_in_place(allocator: Any, block: int, block_size: int, size: int, threads: int, piece: int) -> dict[str, Any]:
    """The alternative to a ring: find pages, pin them, copy into them, release them, piece by piece."""
    target = Pages(size)
    streams = threading.local()

    def save(start: int, length: int) -> None:
        address = target.address + start
        if not hasattr(streams, "stream"):
            streams.stream = allotment.Stream(allocator)
        ctypes.memset(address, 0, length)
        allocator.device.register_host(address, length)
        view = (ctypes.c_char * length).from_address(address)
        allocator.copy(view, block + start % max(block_size - length, 1), length, streams.stream)
        streams.stream.synchronize()
        allocator.device.unregister_host(address)

    seconds = shared_out(size, piece, threads, save)
    return {
        "machine": f"pages pinned in place, {threads} threads, pieces of {piece // MIB} MiB",
        "GB_per_s": size / seconds / 1e9,
    }


# --- ours -------------------------------------------------------------------------------------------------------------


class Weights:
    """Blocks in a tag, whose contents are known: a slice of one random pattern, another one for each."""

    def __init__(self, allocator: Any, size: int, tag: str = "weights") -> None:
        self.allocator = allocator
        self.stream = allotment.Stream(allocator)
        self.block = min(BLOCK, size)
        pinned = allotment.PinnedAllocator("cuda:0")
        self.pattern = pinned.empty(2 * self.block)
        memoryview(self.pattern)[:] = os.urandom(MIB) * (2 * self.block // MIB)
        self.back = [pinned.empty(self.block) for _ in range(4)]
        with allotment.tag(tag):
            self.blocks = [allocator.malloc(self.block) for _ in range(size // self.block)]
        for number, block in enumerate(self.blocks):
            allocator.copy(block, self.expected(number), self.block, self.stream)
        self.stream.synchronize()

    def expected(self, number: int) -> memoryview:
        start = 4096 * (number % (self.block // 4096)) + 64 * (number % 7)
        return memoryview(self.pattern)[start : start + self.block]

    def are_right(self) -> bool:
        def is_right(number: int) -> bool:
            back, stream = self.back[number % 4], allotment.Stream(self.allocator)
            self.allocator.copy(back, self.blocks[number], self.block, stream)
            stream.synchronize()
            stream.destroy()
            found = ctypes.addressof(ctypes.c_char.from_buffer(memoryview(back)))
            wanted = ctypes.addressof(ctypes.c_char.from_buffer(self.expected(number)))
            return libc.memcmp(found, wanted, self.block) == 0

        def share(first: int) -> bool:
            return all([is_right(number) for number in range(first, len(self.blocks), 4)])

        with ThreadPoolExecutor(4) as pool:
            return all(pool.map(share, range(4)))

    def overwrite_what_is_free(self, size: int) -> None:
        """Take the memory that was given back, and change it, so that nothing comes back by chance."""
        with suppress(allotment.OutOfMemoryError):
            taken = self.allocator.malloc(size)
            self.allocator.copy(taken, memoryview(bytearray(b"\xff") * MIB), MIB, self.stream)
            done = MIB
            while done < size:
                part = min(done, size - done)
                self.allocator.copy(taken + done, taken, part, self.stream)
                done += part
            self.stream.synchronize()
            self.allocator.free(taken)
        self.allocator.empty_cache()


def free_memory(allocator: Any) -> int:
    return int(allocator.memory_info()[0])


def ours(size: int, place: str, cycles: int, folder: str) -> dict[str, Any]:
    """One place to keep the contents, in a process of its own."""
    options = dict(PLACES[place])
    if place == "file":
        options["folder"] = folder
    allocator = allotment.Allocator("cuda:0")
    weights = Weights(allocator, size)
    found: dict[str, Any] = {"ours": place, "GiB": size / GIB}
    pauses, resumes, regained, after, freed = [], [], [], [], []
    before, before_available = resident(), available()
    reset_peak()
    awake = free_memory(allocator)
    for number in range(cycles):
        begin = time.perf_counter()
        allocator.pause("weights", **options)
        pauses.append(time.perf_counter() - begin)
        regained.append(free_memory(allocator) - awake)
        if number == 0:
            found["available_falls_by_MiB"] = (before_available - available()) // MIB
        if number in (0, cycles - 1):
            weights.overwrite_what_is_free(size)
        begin = time.perf_counter()
        allocator.resume("weights")
        resumes.append(time.perf_counter() - begin)
        after.append(free_memory(allocator))
        freed.append(resident() - before)
    found |= {
        "first_sleep": rate(size, pauses[:1]),
        "first_wake": rate(size, resumes[:1]),
        "later_sleep": rate(size, pauses[1:]),
        "later_wake": rate(size, resumes[1:]),
        "host_peak_MiB": (status("VmHWM") - before) // MIB,
        "host_after_MiB": freed[-1] // MIB,
        "available_after_MiB": (before_available - available()) // MIB,
        "regained_MiB": [min(regained) // MIB, max(regained) // MIB],
        "drift": after[-1] - after[0],
        "right": place == "nothing" or weights.are_right(),
    }
    allocator.inspection.check_invariants()
    return found


def rate(size: int, seconds: list[float]) -> float | None:
    return round(size / statistics.median(seconds) / 1e9, 1) if seconds else None


def variants(size: int) -> Iterator[dict[str, Any]]:
    """Fresh pages, kept ones, for each way to copy."""
    allocator = allotment.Allocator("cuda:0")
    weights = Weights(allocator, size)
    given: list[dict[str, Any]] = [
        *({"lanes": lanes} for lanes in (16, 8, 12, 24) if lanes <= 2 * CORES),
        *({"span": span * MIB} for span in (1, 4, 8)),
        *({"lanes": 8, "span": span * MIB} for span in (4, 8)),
    ]
    for choice in given:
        copying.choose(**choice)
        found: dict[str, Any] = {"variant": choice}
        allocator.pause("weights")  # makes its buffers
        allocator.resume("weights")
        for name, options in (("fresh", {}), ("kept", {"keep_host": True})):
            pauses, resumes = [], []
            for _ in range(3 if name == "fresh" else 5):
                begin = time.perf_counter()
                allocator.pause("weights", **options)
                middle = time.perf_counter()
                allocator.resume("weights")
                resumes.append(time.perf_counter() - middle)
                pauses.append(middle - begin)
            found[f"{name}_sleep"] = [rate(size, [each]) for each in pauses]
            found[f"{name}_wake"] = [rate(size, [each]) for each in resumes]
        allocator.sleep.release_host_copy("weights")
        found["right"] = weights.are_right()
        yield found
    copying.choose()


def many_cycles(report: Report, times: int, size: int, folder: str) -> dict[str, Any]:
    """Contents compared after each cycle, each place in turn; nothing may drift. Ends early when time runs out."""
    allocator = allotment.Allocator("cuda:0")
    weights = Weights(allocator, size)
    places = [{}, {"keep_host": True}, {"keep": "file", "folder": folder}]
    free, host, wrong = [], [], 0
    begin = time.perf_counter()
    done = 0
    while done < times and time.monotonic() < report.end:
        allocator.pause("weights", **places[done % 3])
        weights.overwrite_what_is_free(size)
        allocator.resume("weights")
        wrong += not weights.are_right()
        if done % 3 == 2:
            free.append(free_memory(allocator))
            host.append(resident())
        done += 1
    allocator.inspection.check_invariants()
    settled = min(10, len(host) - 1)
    return {
        "cycles": done,
        "of": times,
        "MiB": size // MIB,
        "wrong": wrong,
        "device_drift": free[-1] - free[settled],
        "host_drift": host[-1] - host[settled],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "seconds": round(time.perf_counter() - begin, 1),
    }


# --- torch_memory_saver -----------------------------------------------------------------------------------------------


def peers(sizes: list[int], place: str, cycles: int, folder: str) -> Iterator[dict[str, Any]]:
    from torch_memory_saver import torch_memory_saver as saver

    saver.hook_mode = "torch"
    if place == "disk":
        saver.set_disk_backup_dir(folder)
    if place == "retained":
        saver.retain_cpu_backup = True
    for size in sizes:
        yield peer(saver, size, place, cycles)


def peer(saver: Any, size: int, place: str, cycles: int) -> dict[str, Any]:
    import torch

    tag = f"weights of {size}"
    options: dict[str, Any] = {"enable_disk_backup": True} if place == "disk" else {"enable_cpu_backup": True}
    if place != "disk":
        options["cpu_backup_backend"] = "mmap" if place == "mmap" else "pinned"
    with saver.region(tag=tag, **options):
        blocks = [torch.randint(0, 255, (BLOCK,), dtype=torch.uint8, device="cuda") for _ in range(size // BLOCK)]
    sums = [int(block.sum(dtype=torch.int64)) for block in blocks]
    torch.cuda.synchronize()
    before, before_available = resident(), available()
    reset_peak()
    awake = torch.cuda.mem_get_info()[0]
    pauses, resumes, regained = [], [], []
    fallen = 0
    for number in range(cycles):
        begin = time.perf_counter()
        saver.pause(tag)
        pauses.append(time.perf_counter() - begin)
        regained.append(torch.cuda.mem_get_info()[0] - awake)
        if number == 0:
            fallen = before_available - available()
        begin = time.perf_counter()
        saver.resume(tag)
        torch.cuda.synchronize()
        resumes.append(time.perf_counter() - begin)
    found = {
        "peer": place,
        "GiB": size / GIB,
        "first_sleep": rate(size, pauses[:1]),
        "first_wake": rate(size, resumes[:1]),
        "later_sleep": rate(size, pauses[1:]),
        "later_wake": rate(size, resumes[1:]),
        "host_peak_MiB": (status("VmHWM") - before) // MIB,
        "available_falls_by_MiB": fallen // MIB,
        "host_after_MiB": (resident() - before) // MIB,
        "available_after_MiB": (before_available - available()) // MIB,
        "regained_MiB": [min(regained) // MIB, max(regained) // MIB],
        "right": sums == [int(block.sum(dtype=torch.int64)) for block in blocks],
    }
    with saver.region(tag=tag, **options):  # it ends the process if memory is freed elsewhere
        del blocks
        torch.cuda.empty_cache()
    return found


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def with_torch() -> dict[str, Any]:
    """A model answers the same bits before and after, also by a graph that was captured before."""
    import allotment.torch

    allotment.torch.install(patch=True)
    import torch

    torch.manual_seed(1)
    with allotment.tag("model"):
        layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
        model = torch.nn.Sequential(*layers).cuda().eval()
    given = torch.randn(64, 4096, device="cuda")
    with torch.no_grad():
        before = model(given).clone()
        model(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(given)
        graph.replay()
        torch.cuda.synchronize()
        by_graph = out.clone()
        free = torch.cuda.mem_get_info()[0]
        released = allotment.torch.pause(model)
        rise = torch.cuda.mem_get_info()[0] - free
        allotment.torch.resume(model)
        after = model(given)
        graph.replay()
        torch.cuda.synchronize()
    return {
        "released": released,
        "free_rises_by": rise,
        "same_bits": torch.equal(before, after),
        "same_bits_by_graph": torch.equal(by_graph, out),
    }


def training_with_torch() -> dict[str, Any]:
    """GPT-2, 30 steps of changing length: a program in order."""
    from gpt2_training import train

    import allotment.torch
    from allotment.torch import memory

    with allotment.torch.sanitize() as sanitizers:
        losses = train(memory)["losses"]
    reports = [report for sanitizer in sanitizers.values() for report in sanitizer.reports]
    return {"steps": len(losses), "last_loss": losses[-1], "reports": [str(report) for report in reports]}


# --- all of it --------------------------------------------------------------------------------------------------------


class Report:
    """Prints each finding as soon as it is there, and keeps it."""

    def __init__(self, seconds: float, out: Path | None) -> None:
        self.end = time.monotonic() + seconds
        self.out = out
        self.found: list[dict[str, Any]] = []

    def add(self, found: dict[str, Any]) -> None:
        rounded = {key: round(value, 1) if isinstance(value, float) else value for key, value in found.items()}
        print(json.dumps(rounded), flush=True)
        self.found.append(rounded)
        if self.out is not None:
            self.out.write_text(json.dumps(self.found, indent=1))

    def has_room(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.end

    def has_time(self, needed: float, what: str) -> bool:
        if self.has_room(needed):
            return True
        self.add({"left out": what, "reason": f"it needs {needed:.0f} s"})
        return False


def seconds_for(name: str, size: int, place: str, cycles: int) -> float:
    """About how long a row takes on an H200, without the start of its process."""
    if place in ("file", "disk"):
        return 2 * cycles * size / 1.5e9
    pages = (1 if place == "retained" else cycles) * size / 4e9 if name == "peers" else 0  # pinned anew for each sleep
    return pages + 2 * cycles * size / 20e9 + size / 10e9


def in_a_process(report: Report, name: str, sizes: list[int], place: str, cycles: int, folder: str) -> None:
    """Report each row as it comes; what there is no time for is named."""
    start = 8 if name == "peers" else 4
    wanted = list(sizes)
    while sizes and not report.has_room(start + sum(seconds_for(name, size, place, cycles) for size in sizes)):
        sizes = sizes[:-1]
    for size in wanted[len(sizes) :]:
        report.add({"left out": f"{name} {place} {size / GIB:g} GiB", "reason": "the time is too short"})
    if not sizes:
        return
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, "--one", json.dumps([name, sizes, place, cycles, folder])],
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        watchdog = threading.Timer(max(report.end - time.monotonic(), 1), process.kill)
        watchdog.start()
        for line in process.stdout:
            if line.startswith("{"):
                report.add(json.loads(line))
                sizes = sizes[1:]
        watchdog.cancel()
        if process.wait() != 0 and sizes:
            errors.seek(0)
            report.add({name: place, "GiB": [size / GIB for size in sizes], "failed": errors.read()[-1500:]})


def table(found: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of markdown."""
    columns = (
        "first_sleep", "first_wake", "later_sleep", "later_wake", "host_peak_MiB", "available_falls_by_MiB",
        "host_after_MiB", "available_after_MiB", "regained_MiB", "right",
    )  # fmt: skip
    rows = [row for row in found if "first_sleep" in row]
    if not rows:
        return []
    lines = ["| | GiB | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 2)]
    for row in sorted(rows, key=lambda row: (row["GiB"], "peer" in row)):
        name = f"ours, {row['ours']}" if "ours" in row else f"torch_memory_saver, {row['peer']}"
        lines.append(
            f"| {name} | {row['GiB']:g} | " + " | ".join(str(row.get(column, "")) for column in columns) + " |"
        )
    return lines


def goals(found: list[dict[str, Any]]) -> list[str]:
    """Say for each row of ours what was wanted, and what was missed."""
    lines = []
    can = {row["machine"]: row["GB_per_s"] for row in found if "machine" in row}
    into_host = can.get("device to pinned", float("inf"))
    into_device = can.get("pinned to device", float("inf"))
    fresh = max((rate for name, rate in can.items() if "fresh" in name), default=float("inf"))
    for row in found:
        if row.get("ours") not in ("host", "keep_host") or "first_sleep" not in row:
            continue
        size = row["GiB"] * GIB
        wanted = {
            "first_sleep": min(GOAL_FIRST, SHARE * min(into_host, fresh)),
            "first_wake": min(GOAL_FIRST, SHARE * into_device),
        }
        if row["ours"] == "keep_host":
            wanted["later_sleep"] = min(GOAL_LATER, SHARE * into_host)
            wanted["later_wake"] = min(GOAL_LATER, SHARE * into_device)
        said = [f"{name} {row[name]} of {goal:.1f} wanted" for name, goal in wanted.items() if row[name] is not None]
        missed = [name for name, goal in wanted.items() if row[name] is not None and row[name] < goal]
        most = {
            "host_peak_MiB": 1.01 * size + RING,
            "host_after_MiB": RING + (row["ours"] == "keep_host") * 1.01 * size,
        }
        said += [f"{name} {row[name]} of {limit / MIB:.0f} allowed" for name, limit in most.items()]
        missed += [name for name, limit in most.items() if row[name] * MIB > limit]
        missed += [name for name, bad in (("right", not row["right"]), ("drift", row["drift"] != 0)) if bad]
        lines.append(
            f"{row['ours']} {row['GiB']:g} GiB: {', '.join(said)}: {'missed ' + ', '.join(missed) if missed else 'met'}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Sleep and wake on a GPU.")
    parser.add_argument("--parts", nargs="+", default=["machine", "ours", "peer", "variants"])
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 10, 40], metavar="GIB")
    parser.add_argument("--peer-sizes", nargs="+", type=float, default=[1, 10, 40], metavar="GIB")
    parser.add_argument("--places", nargs="+", default=list(PLACES))
    parser.add_argument("--times", type=int, default=4, help="cycles of each size")
    parser.add_argument("--cycles", type=int, default=1000, help="of the part `cycles`")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, sizes, *arguments = json.loads(given.one)
        for found in peers(sizes, *arguments) if name == "peers" else (ours(size, *arguments) for size in sizes):
            print(json.dumps(found), flush=True)
        return 0
    report = Report(given.seconds, given.out)
    if "machine" in given.parts:
        for found in machine(int(min(max(given.sizes), 8) * GIB), int((max(given.sizes) + 4) * GIB)):
            report.add(found)
    if "ours" in given.parts:
        for place in sorted(given.places, key=lambda place: place == "file"):  # the slowest last
            for size in given.sizes:
                if place != "file" or size * GIB <= FILE_LIMIT:
                    times = 2 if place == "file" or size > 20 else given.times
                    in_a_process(report, "ours", [int(size * GIB)], place, times, given.folder)
    if "peer" in given.parts and find_spec("torch_memory_saver") is None:
        report.add({"left out": "peer", "reason": "torch_memory_saver cannot be imported"})
    elif "peer" in given.parts:
        for place in PEER_PLACES:
            sizes = [int(size * GIB) for size in given.peer_sizes if place != "disk" or size * GIB <= FILE_LIMIT]
            in_a_process(report, "peers", sizes, place, 2, given.folder)
    if "variants" in given.parts and report.has_time(20, "variants"):
        for found in variants(int(min(max(given.sizes), 4) * GIB)):
            report.add(found)
            if not report.has_time(2, "further variants"):
                break
    if "cycles" in given.parts:
        report.add(many_cycles(report, given.cycles, int(min(min(given.sizes) * GIB, 128 * MIB)), given.folder))
    if "torch" in given.parts:
        report.add({"torch": with_torch()})
        report.add({"training": training_with_torch()})
    said = goals(report.found)
    print("\n".join(["", *table(report.found), *said]))
    wrong = any(
        "failed" in row or row.get("right") is False or row.get("wrong") or row.get("device_drift")
        for row in report.found
    )
    return 1 if wrong or any(": missed" in line for line in said) else 0


if __name__ == "__main__":
    sys.exit(main())
