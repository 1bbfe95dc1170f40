"""What caching by exact size gains on a program that repeats its shapes, next to the C library's own allocators.

    python benchmarks/cpu_caching.py [--json] [--repeats N]

Every allocator is called by one C loop through one kind of function table, so that a row differs from another by
the allocator alone. The loop replays the requests of one step of a program again and again: `touch` writes to
each page of new memory, which is where a first touch costs a page fault; without it nothing is written. Rows of
a case are measured in turns; the ratio is the middle one over all turns. "malloc, tuned" is the C library told by its
environment never to give memory back, measured in a process of its own against caching there.

What to expect: a cached pair costs the same whatever its size, while a large block that goes back to the system has to
be mapped and faulted in again each time. Where the C library keeps the memory too, exact sizes have no such
advantage, and each size has memory of its own, so that more of it is touched than with one heap.

Times are processor time of the measuring thread, so that a busy machine matters little. A second thread is alive
throughout: in a process with one thread locks cost less than they do in real ones.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from allotment._allocators.host_cache import cache as cpu

KIB, MIB = 1 << 10, 1 << 20
FREE = 0
"""The size of an operation that frees."""

TUNED = "malloc, tuned"
TUNED_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=17179869184",
}

LOOP = """
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    size_t size;
    uint32_t version;
    void* context;
    void* (*allocate)(void* context, size_t size);
    int (*free)(void* context, void* memory);
} EntryPoints;

typedef struct { uint32_t slot; size_t size; } Operation;

static void* by_malloc(void* context, size_t size) { return malloc(size); }
static void* by_memalign(void* context, size_t size) {
    void* memory = NULL;
    return posix_memalign(&memory, 64, size) == 0 ? memory : NULL;
}
static int by_free(void* context, void* memory) { free(memory); return 1; }

EntryPoints malloc_table = {sizeof(EntryPoints), 1, NULL, by_malloc, by_free};
EntryPoints memalign_table = {sizeof(EntryPoints), 1, NULL, by_memalign, by_free};

/* Processor seconds for `rounds` replays; below 0 if memory ran out. */
double replay(const EntryPoints* table, const Operation* operations, size_t count, size_t rounds, int touch) {
    void* slots[256];
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            const Operation* operation = &operations[i];
            if (operation->size == 0) {
                table->free(table->context, slots[operation->slot]);
                continue;
            }
            volatile char* memory = table->allocate(table->context, operation->size);
            if (memory == NULL) return -1;
            if (touch)
                for (size_t at = 0; at < operation->size; at += 4096) memory[at] = 1;
            slots[operation->slot] = (void*) memory;
        }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (end.tv_sec - begin.tv_sec) + 1e-9 * (end.tv_nsec - begin.tv_nsec);
}
"""


class Operation(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_uint32), ("size", ctypes.c_size_t)]


@dataclass(frozen=True)
class Case:
    """One step of a program, and how often to replay it for one measurement."""

    name: str
    operations: tuple[tuple[int, int], ...]
    touch: bool
    rounds: int

    @property
    def pairs(self) -> int:
        return self.rounds * sum(size == FREE for _, size in self.operations)


@dataclass(frozen=True)
class Row:
    case: str
    allocator: str
    pair_ns: float
    times_caching: float
    hit_rate: float | None = None


def layers(sizes: list[int]) -> tuple[tuple[int, int], ...]:
    """A chain of layers: each output, and a scratch buffer beside it, is needed until the next layer is done."""
    operations = []
    for i, size in enumerate(sizes):
        scratch = len(sizes) + i
        operations += [(i, size), (scratch, size // 4), (scratch, FREE)]
        if i > 0:
            operations.append((i - 1, FREE))
    operations.append((len(sizes) - 1, FREE))
    return tuple(operations)


def cases() -> list[Case]:
    small = layers([1000, 4000, 4000, 16_000, 16_000, 2500, 2500, 40] * 3)
    activations = layers([3 * MIB, MIB, MIB, 512 * KIB, 512 * KIB, 256 * KIB, 2 * MIB, 8 * MIB])
    large = layers([64 * MIB, 48 * MIB])
    return [
        Case("small (40 B to 16 kB)", small, False, 2000),
        Case("activations (64 KiB to 8 MiB)", activations, False, 1000),
        Case("activations, touched", activations, True, 3),
        Case("large (12 to 64 MiB)", large, False, 2000),
        Case("large, touched", large, True, 1),
    ]


def build_loop(folder: str) -> ctypes.CDLL:
    source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
    source.write_text(LOOP)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    subprocess.run([*compiler, "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    loop = ctypes.CDLL(str(library))
    loop.replay.restype = ctypes.c_double
    loop.replay.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return loop


def table_address(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"allotment.cpu.entry_points")


@contextmanager
def second_thread() -> Iterator[None]:
    finish = threading.Event()
    thread = threading.Thread(target=finish.wait)
    thread.start()
    try:
        yield
    finally:
        finish.set()
        thread.join()


def measure_case(loop: ctypes.CDLL, case: Case, repeats: int, advance: Callable[[], None]) -> list[Row]:
    # A table makes its allocator live as long as the process, so what it has cached is released by hand.
    cache, checked = cpu.CachingAllocator(), cpu.CachingAllocator(checked=True)
    tables = {
        "caching": table_address(cache.entry_points()),
        "caching, checked": table_address(checked.entry_points()),
        "allotment.cpu, no guard": table_address(cpu.entry_points()),
        "posix_memalign": ctypes.addressof(ctypes.c_char.in_dll(loop, "memalign_table")),
        "malloc": ctypes.addressof(ctypes.c_char.in_dll(loop, "malloc_table")),
    }
    operations = (Operation * len(case.operations))(*case.operations)

    def replay(table: int, rounds: int) -> float:
        seconds = loop.replay(table, operations, len(operations), rounds, case.touch)
        if seconds < 0:
            sys.exit(f"{case.name}: this machine has not enough memory")
        return 1e9 * seconds / case.pairs

    for table in tables.values():
        replay(table, 1)
    turns = []
    for _ in range(repeats):
        turns.append({name: replay(table, case.rounds) for name, table in tables.items()})
        advance()
    hits, misses = cache.stats()["hits"], cache.stats()["misses"]
    cache.empty_cache()
    checked.empty_cache()
    return [
        Row(
            case.name,
            name,
            pair_ns=min(turn[name] for turn in turns),
            times_caching=statistics.median(turn[name] / turn["caching"] for turn in turns),
            hit_rate=hits / (hits + misses) if name == "caching" else None,
        )
        for name in tables
    ]


def measure_python(repeats: int) -> list[Row]:
    """A pair of calls from Python, which has to pay for the interpreter as well."""
    cache = cpu.CachingAllocator()
    number = 50_000
    statements = {
        "caching": ("free(allocate(1000))", {"allocate": cache.allocate, "free": cache.free}),
        "caching, through a guard": ("free(allocate(1000))", {"allocate": cpu.allocate, "free": cpu.free}),
        "two calls of dict.get": ("get(get(1000, 1000), 1000)", {"get": {}.get}),
    }
    turns = []
    with cpu.caching(cache):
        for _ in range(repeats):
            turns.append(
                {
                    name: 1e9 * timeit.timeit(statement, timer=time.thread_time, globals=names, number=number) / number
                    for name, (statement, names) in statements.items()
                }
            )
    return [
        Row(
            "from Python, 1000 B",
            name,
            pair_ns=min(turn[name] for turn in turns),
            times_caching=statistics.median(turn[name] / turn["caching"] for turn in turns),
        )
        for name in statements
    ]


def measure_tuned(repeats: int) -> list[Row]:
    """The rows of malloc from a process where it is tuned; none where the C library cannot be."""
    if platform.libc_ver()[0] != "glibc":
        return []
    done = subprocess.run(
        [sys.executable, __file__, "--json", "--untuned", "--repeats", str(repeats)],
        env={**os.environ, **TUNED_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [Row(**row) for row in json.loads(done.stdout)["rows"]]
    return [Row(row.case, TUNED, row.pair_ns, row.times_caching) for row in rows if row.allocator == "malloc"]


def show(rows: list[Row], console: Console) -> None:
    table = Table(title="Host memory, one allocate and free pair")
    table.add_column("case")
    table.add_column("allocator")
    for heading in ("ns a pair (best)", "times caching (middle)", "hit rate"):
        table.add_column(heading, justify="right")
    case = None
    for row in rows:
        if row.case != case:
            table.add_section()
        table.add_row(
            row.case if row.case != case else "",
            row.allocator,
            f"{row.pair_ns:,.0f}",
            f"{row.times_caching:.2f}",
            "" if row.hit_rate is None else f"{row.hit_rate:.1%}",
        )
        case = row.case
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--repeats", type=int, default=15, help="turns for each case")
    parser.add_argument("--untuned", action="store_true", help="leave out the row of a tuned C library")
    options = parser.parse_args()
    if sys.platform == "win32":
        sys.exit("the C loop of this benchmark is written for POSIX systems")

    progress = Progress(console=Console(stderr=True), transient=True, disable=options.json)
    with tempfile.TemporaryDirectory() as folder, second_thread(), progress:
        loop = build_loop(folder)
        task = progress.add_task("measuring", total=len(cases()) * options.repeats)
        rows = []
        for case in cases():
            rows += measure_case(loop, case, options.repeats, lambda: progress.advance(task))
        rows += measure_python(options.repeats)
    if not options.untuned:
        rows += measure_tuned(options.repeats)
        order = list(dict.fromkeys(row.case for row in rows))
        rows.sort(key=lambda row: order.index(row.case))
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        show(rows, Console())


if __name__ == "__main__":
    main()
