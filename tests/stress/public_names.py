"""All public names, called with anything: odd arguments, re-entry, collections, threads, forks and signals.

    python tests/stress/public_names.py [--seconds 600] [--seed 1] [--only NUMBER] [--steps 1200] [--threads 8]

Each case is a separate process, made only from its number: a world of allocators, streams, pools, graphs and
devices, some of them written in Python and unreliable, on which drawn members are called with drawn arguments. The
functions that it hands out (callbacks, trackers, filters, finalizers, work on streams) call members again. Exceptions
of a case do not matter, except InvariantError and SystemError. It must not crash, must end in time, and must leave
every allocator consistent. In between it writes memory at once beside queued work, see host_writes.py, and compares
every byte later. Ctrl-C arrives during one step in ten, a moment after its start; afterwards a tag must still pause and
resume. Only the moments of these signals differ when a case is run again. Prints one JSON object; exit 1 if anything
failed.

Left out is what a caller is trusted with: functions given by their address, frees of the C library's memory, waits by a
function that others wait for, and `Probe`, which passes any argument on to a device.
"""

from __future__ import annotations

import _imp
import argparse
import copy
import faulthandler
import gc
import inspect
import json
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

import allotment
from allotment import cpu, devices, entry
from allotment._allocators.host_cache.host_memory import HostMemory

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from stress.host_writes import HostWrites

IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MOST_SECONDS = 600.0  # wall-clock time: on a busy machine a case that needs one second may take a hundred
MOST_MEMORY = 6 << 30
MIB = 1 << 20
SIZES = [0, 1, 511, 512, 513, 4096, MIB - 1, MIB, 3 * MIB, 11 * MIB, 24 * MIB, 70 * MIB]
HUGE = [1 << 40, (1 << 47) - 1, 1 << 59, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, -1, -512]
SETTINGS = [
    *("", "expandable_segments:True", "expandable_segments:False", "max_split_size_mb:21", "placement:dense"),
    *(
        "garbage_collection_threshold:0.3",
        "roundup_power2_divisions:4",
        "compat:2.11",
        "compat:newest",
        "backend:native",
    ),
    *("release_lock_on_cudamalloc:True", "graph_capture_record_stream_reuse:True", "per_process_memory_fraction:0.5"),
    *("backend:cudaMallocAsync", "no_such_key:1", "max_split_size_mb:", ":", "large_segment_size_mb:40", "\0"),
]
DEVICES = ["host", "sim:64MiB", "sim:1GiB", "sim:1GiB#3", "cuda:0", "sim:0", "cpu", "nothing"]
PARTS = [type(getattr(allotment.Allocator("sim:1GiB"), name)) for name in
         ("history", "pools", "limits", "sleep", "sharing", "inspection")]  # fmt: skip
WAITS = {"synchronize", "join", "device_synchronize", "event_synchronize", "stream_synchronize", "wait"}
TRUSTED = frozenset(
    {
        *("free", "record_free", "set_fill"),  # of allotment.cpu: straight to the C library
        *("from_library", "entry_points", "entry_points_address"),
        *(
            "__class__",
            "__init_subclass__",
            "__subclasshook__",
            "__new__",
            "__reduce__",
            "__reduce_ex__",
            "__getstate__",
        ),
        *("__setattr__", "__delattr__", "__getattribute__", "__dir__", "__doc__", "__init__", "__del__", "__dealloc__"),
    }
)


class Odd:
    """Returns another number with each query, and no true length."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = random.Random(draw.random())

    def number(self, *_: object) -> int:
        if self.draw.random() < 0.2:
            raise self.draw.choice([ValueError, KeyError, RuntimeError, MemoryError])("odd")
        return self.draw.choice([*SIZES, *HUGE])

    __index__ = __int__ = __hash__ = number

    def __len__(self) -> int:
        return self.draw.choice([0, 1, 2, 5])

    def __iter__(self) -> Any:
        return iter([self.number()] * self.draw.choice([0, 1, 2, 3]))

    def __getitem__(self, place: object) -> int:
        return self.number()

    def __eq__(self, other: object) -> bool:
        return self.draw.random() < 0.5

    def __bool__(self) -> bool:
        return self.draw.random() < 0.5

    def __cuda_stream__(self) -> Any:
        return self.draw.choice([(), (0,), (0, 0), (0, 5), [0, 1 << 70], None, self])

    @property
    def address(self) -> Any:
        return self.draw.choice([0, 1, self, None, 1 << 64])

    @property
    def device(self) -> Any:
        return self.draw.choice([None, self, "host"])

    handle = address


class Finalized:
    """In a cycle, so that a collection finds it at any time; its finalizer's action is random."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.circle = self

    def __del__(self) -> None:
        self.case.act_inside()


class Unreliable(allotment.Backend):
    """A device that mostly works."""

    def __init__(self, case: Case) -> None:
        super().__init__(name="unreliable")
        self.case, self.next, self.segments = weakref.ref(case), 1 << 40, {}

    def allocate(self, size: int, stream: int) -> Any:
        case = self.case()
        if case is not None and case.draw.random() < 0.2:
            case.act_inside()
            if case.draw.random() < 0.5:
                raise case.draw.choice([MemoryError, OSError, ValueError])("not now")
            if case.draw.random() < 0.5:
                return case.draw.choice([0, None, -1, 7, 1 << 63, (1 << 64) - 1, "x", self.next - 512])
        self.next += size + 2 * MIB
        self.segments[self.next - size] = size
        return self.next - size

    def free(self, address: int, size: int) -> None:
        case = self.case()
        if case is not None and case.draw.random() < 0.1:
            case.act_inside()
            raise case.draw.choice([MemoryError, OSError])("not now")
        self.segments.pop(address, None)


class Interrupts:
    """Ctrl-C, at most once during a step of the main thread."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.sent = 0
        self.is_open = False
        signal.signal(signal.SIGALRM, self.arrive)

    def arrive(self, *_: object) -> None:
        if self.is_open:
            self.is_open = False
            self.sent += 1
            raise KeyboardInterrupt

    def may_interrupt(self, action: Callable[[], None]) -> None:
        """Run this; in one case of ten a signal arrives a moment after the start, unless it has ended by then."""
        try:
            if self.draw.random() < 0.1:
                self.is_open = True
                signal.setitimer(signal.ITIMER_REAL, self.draw.choice([5e-6, 2e-5, 1e-4, 5e-4, 5e-3]))
            action()
        except KeyboardInterrupt:
            pass
        finally:
            self.is_open = False
            signal.setitimer(signal.ITIMER_REAL, 0)  # at the end of the process nobody would handle it
            release_import_lock()
            if sys.version_info[:2] == (3, 14):
                release_locks()


def release_locks() -> None:
    """Release the package's locks that the calling thread was interrupted just after acquiring.

    That is a fault of Python 3.14: a signal's handler may run between the `__enter__` of a `with` statement and its
    body, and what it raises then skips the `__exit__` (cpython#148874).
    """
    for lock in sys.modules["allotment._core.tools.fork_safe_lock"]._living():
        while lock._is_owned():
            lock.release()


def release_import_lock() -> None:
    """Release the lock of Python's import system, if the calling thread was interrupted just after it acquired it.

    That is a fault of Python: `importlib` acquires it in the `__enter__` of a class, in Python code. All other threads
    that import would wait for ever.
    """
    while _imp.lock_held():
        try:
            _imp.release_lock()
        except RuntimeError:  # another thread has it, and will release it
            return


class Sleeper:
    """A tag that is paused and resumed, whatever interrupts that, and whichever thread pauses all tags."""

    def __init__(self, settings: str) -> None:
        self.allocator = allotment.Allocator("host", settings=settings, limit="64MiB")
        with allotment.tag("sleeper"):
            self.buffers = [self.allocator.empty(size) for size in (1000, 3 * MIB)]

    def step(self) -> None:
        self.allocator.pause("sleeper")
        self.allocator.resume("sleeper")

    def check(self) -> None:
        """Raise the error of the last of many attempts if the tag can no longer be paused, resumed and used."""
        for tries_left in reversed(range(20)):
            try:
                self.allocator.resume("sleeper")
                self.step()
                with allotment.tag("sleeper"):
                    self.allocator.free(self.allocator.malloc(4096))
                return
            except allotment.AllotmentError:  # a function on a stream may have paused all tags in between
                if tries_left == 0:
                    raise
                time.sleep(0.05)


class Case:
    """One world, and the steps that run on it."""

    def __init__(self, number: int) -> None:
        self.draw = random.Random(number)
        self.things: list[Any] = []
        self.addresses: list[int] = []
        self.here = threading.local()
        self.over = False
        self.writes = HostWrites(self.draw.choice(SETTINGS[:5]), random.Random(number))
        self.sleeper = Sleeper(self.draw.choice(SETTINGS[:5]))
        self.interrupts = Interrupts(random.Random(number))
        self.classes = [
            value for module in (allotment, cpu, devices) for name in module.__all__
            if inspect.isclass(value := getattr(module, name, None)) and not issubclass(value, BaseException)
            and value not in (allotment.PluggableAllocator, allotment.DeviceAllocator, devices.Probe)
        ]  # fmt: skip
        self.functions = [
            value for module in (allotment, cpu, devices, entry) for name in module.__all__
            if callable(value := getattr(module, name, None)) and not inspect.isclass(value) and name not in TRUSTED
        ]  # fmt: skip
        # Beforehand: CPython 3.11 does not bear its parser being entered again by a finalizer.
        self.parameters = {
            value.__qualname__: parameters_of(value)
            for owner in (None, *self.classes, *PARTS, allotment.PluggableAllocator)
            for value in ([*self.classes, *self.functions] if owner is None else members_of(owner))
        }
        self.furnish()

    def furnish(self) -> None:
        settings = self.draw.choice(SETTINGS[:5])
        for make in (
            lambda: allotment.Allocator("sim:256MiB", settings=settings),
            lambda: allotment.Allocator("host", settings=settings, limit="128MiB"),
            lambda: allotment.Allocator("host", limit="64MiB"),
            lambda: allotment.Allocator(Unreliable(self)),
            lambda: allotment.AsyncAllocator("sim:256MiB"),
            lambda: allotment.PluggableAllocator(self.plugged, lambda *_: None, device="sim:1GiB"),
        ):
            if self.draw.random() < 0.7:
                with suppress(allotment.AllotmentError):
                    self.keep(make())
        for thing in list(self.things):
            for make in (lambda thing=thing: allotment.Stream(thing), lambda thing=thing: thing.pool()):
                with suppress(Exception):
                    self.keep(make())

    def plugged(self, size: int, device: int, stream: int) -> int:
        self.act_inside()
        return self.draw.choice([0, 4096, 8192, 1 << 40])

    def keep(self, thing: Any) -> Any:
        if isinstance(thing, int) and not isinstance(thing, bool):
            self.addresses.append(thing)
            del self.addresses[:-60]
        elif type(thing).__module__.startswith("allotment") and not isinstance(thing, BaseException):
            self.things.append(thing)
            if len(self.things) > 60:
                del self.things[self.draw.randrange(len(self.things))]
        elif isinstance(thing, list | tuple) and len(thing) < 5:
            for part in thing:
                self.keep(part)
        return thing

    # --- arguments ---

    def any_of(self, kind: type | tuple[type, ...]) -> Any:
        found = [thing for thing in list(self.things) if isinstance(thing, kind)]
        return self.draw.choice(found) if found else None

    def function(self) -> Callable[..., Any]:
        answer = self.draw.choice([None, True, False, 1, "x"])
        kind = self.draw.randrange(4)

        def called(*arguments: Any, **named: Any) -> Any:
            if kind == 0:
                raise self.draw.choice([ValueError, MemoryError, KeyboardInterrupt, SystemExit])("drawn")
            if kind < 3:
                self.act_inside()
            return answer

        return called

    def odd(self) -> Any:
        return self.draw.choice([
            None, True, False, 0, 1, -1, 1.5, float("nan"), float("inf"), "", "x", "\0", b"", b"xyz", (), (0,), (0, 1),
            (1, 0), (0, 0), (1, 2, 3), [], {}, {1: 2}, set(), object(), int, len, np.array([0, 1]), np.array([]),
            np.int64(7), np.float32(2), np.zeros(3, np.uint8), bytearray(100), memoryview(b"abc"), Odd(self.draw), ...,
            SimpleNamespace(address=4096, device=None, handle=5), *HUGE, *self.things[-3:], self.function(),
        ])  # fmt: skip

    def argument(self, name: str) -> Any:
        if name == "tries":  # whoever asks for 2**60 of them gets them, and waits
            return self.draw.choice([-1, 0, 1, 2, 5, None])
        if self.draw.random() < 0.25:
            return self.odd()
        name = name.lower()
        if "size" in name or name in ("largest", "limit", "count", "capacity", "max_entries"):
            return self.draw.choice(SIZES if self.draw.random() < 0.9 else HUGE)
        if name in ("address", "block", "destination", "source", "addresses"):
            near = self.draw.choice(self.addresses) if self.addresses else 0
            return self.draw.choice(
                [near, near, near + self.draw.choice([1, 512, -512]), self.any_of(allotment.Buffer)]
            )
        if "stream" in name or name in ("on", "handle"):
            return self.draw.choice([0, self.any_of(allotment.Stream), self.any_of(allotment.Stream), 3, 1 << 32])
        if name == "event":
            return self.any_of(allotment.Event)
        if name == "state":
            return self.any_of(allotment.PoolState)
        if name == "pool":
            pool = self.any_of((allotment.Pool, allotment.Graph))
            return self.draw.choice([pool, getattr(pool, "id", (0, 1)), (0, self.draw.randrange(4)), (0, 0)])
        if "device" in name or name == "peer":
            device = self.any_of((allotment.Allocator, allotment.SimulatedDevice))
            return self.draw.choice([device, *DEVICES, 0, 1, None])
        if "alloc" in name:
            return self.any_of((allotment.Allocator, allotment.AsyncAllocator))
        if name in ("settings", "text"):
            return self.draw.choice(SETTINGS)
        if name in ("callback", "tracker", "observer", "accepts", "function", "step", "script", "recorder"):
            return self.function()
        if name in ("fraction",):
            return self.draw.choice([0.0, 0.5, 1.0, 2.0])
        if name == "path":
            return self.draw.choice(["snapshot.pickle", "no/such/folder/x", "."])
        return self.odd()

    def arguments(self, target: Any) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        parameters = self.parameters.get(getattr(target, "__qualname__", ""))
        if parameters is None:
            return [self.odd() for _ in range(self.draw.choice([0, 0, 1, 2]))], {}
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.default is not parameter.empty and self.draw.random() < 0.6:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    break
                continue
            value = self.argument(parameter.name)
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[parameter.name] = value
            else:
                positional.append(value)
        if self.draw.random() < 0.03:
            positional.append(self.odd())
        return positional, named

    # --- steps ---

    def act_inside(self) -> None:
        """The action of a user function; its exceptions do not matter."""
        if self.over or getattr(self.here, "depth", 0) > 3:
            return
        self.here.depth = getattr(self.here, "depth", 0) + 1
        try:
            self.attempt(inside=True)
        finally:
            self.here.depth -= 1

    def attempt(self, inside: bool = False) -> None:
        try:
            self.step(inside)
        except BaseException as error:
            noted(error)

    def step(self, inside: bool) -> None:
        if not inside and self.draw.random() < 0.02:
            self.sleeper.step()
            return
        if self.draw.random() < 0.05:
            # Another thread may pause a tag at any moment, and memory that is paused must not be touched.
            if not getattr(self.here, "is_in_tag", False):
                self.writes.step()
            return
        kind = self.draw.random()
        if kind < 0.03:
            gc.collect(self.draw.choice([0, 1, 2]))
        elif kind < 0.06:
            Finalized(self)
        elif kind < 0.12 and self.things:
            del self.things[self.draw.randrange(len(self.things))]
        elif kind < 0.14 and self.things:
            thing = self.draw.choice(self.things)
            self.draw.choice([copy.copy, copy.deepcopy, pickle.dumps, repr, hash, bool, list, bytes, memoryview])(thing)
        elif kind < 0.22:
            target = self.draw.choice(self.classes if self.draw.random() < 0.5 else self.functions)
            if target not in (Case, allotment.capture) or not inside:
                positional, named = self.arguments(target)
                self.keep(target(*positional, **named))
        elif self.things:
            self.use(self.draw.choice(list(self.things)), inside)

    def use(self, thing: Any, inside: bool) -> None:
        if inside and self.is_on_host(thing):
            return  # the caller may be a function that others wait for
        names = [name for name in dir(type(thing)) if self.is_drawn(name)]
        name = self.draw.choice(names)
        if name == "free" and isinstance(thing, HostMemory) and not getattr(thing, "checked", False):
            return  # straight to the C library
        if name in WAITS and (inside or threading.current_thread() is not threading.main_thread()):
            return
        if isinstance(inspect.getattr_static(type(thing), name, None), property) and self.draw.random() < 0.3:
            setattr(thing, name, self.argument(name))
            return
        member = getattr(thing, name)
        if not callable(member):
            self.keep(member)
            return
        if name == "__enter__" and isinstance(thing, allotment.tag):
            self.here.is_in_tag = True
        positional, named = self.arguments(member)
        if name == "submit":
            positional = [self.function()]
        self.keep(member(*positional, **named))

    def is_drawn(self, name: str) -> bool:
        if name in TRUSTED and name != "free":
            return False
        return not name.startswith("_") or (name.startswith("__") and self.draw.random() < 0.3)

    def is_on_host(self, thing: Any) -> bool:
        with suppress(Exception):
            thing = getattr(thing, "allocator", thing)
            return getattr(getattr(thing, "device", thing), "family", "host") == "host"
        return True

    def run(self, steps: int) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        for _ in range(steps):
            if is_main:
                self.interrupts.may_interrupt(self.attempt)
            else:
                self.attempt()

    def check(self) -> None:
        for thing in list(self.things):
            check = getattr(getattr(thing, "inspection", thing), "check_invariants", None)
            if check is not None:
                check()
        self.writes.check()
        self.sleeper.check()


def members_of(cls: type) -> list[Any]:
    found = [getattr(cls, name, None) for name in dir(cls)]
    return [member for member in found if callable(member) and hasattr(member, "__qualname__")]


def parameters_of(value: Any) -> list[inspect.Parameter] | None:
    try:
        found = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    return [parameter for parameter in found if parameter.name != "self"]


# --- one case, in its own process ---------------------------------------------------------------------------


def run_case(number: int, steps: int, count: int | None) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(MOST_SECONDS - 20, exit=True)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.unraisablehook = lambda report: noted(report.exc_value)
    threading.excepthook = lambda report: noted(report.exc_value)
    os.chdir(tempfile.mkdtemp())
    import warnings

    warnings.simplefilter("ignore")
    case = Case(number)
    gc.set_threshold(case.draw.choice([5, 50, 700]))
    for _ in range(4):
        case.run(steps // 8)
        drawn = case.draw.choice([0, 0, 1, 3])
        others = drawn if count is None else count
        threads = [threading.Thread(target=case.run, args=(steps // 8,)) for _ in range(others)]
        for thread in threads:
            thread.start()
        forks = case.draw.random() < 0.3
        if forks and not IS_FREE_THREADED:
            fork_and_use(case)
        for thread in threads:
            thread.join()
        if forks and IS_FREE_THREADED:
            fork_and_use(case)
        case.check()
    case.over = True
    print(json.dumps({"interrupts": case.interrupts.sent, "host_writes": case.writes.made}), flush=True)
    if case.draw.random() < 0.5:
        os._exit(0)  # the others end as programs do


def noted(error: BaseException | None) -> None:
    if isinstance(error, SystemError) and "AST constructor recursion depth mismatch" in str(error):
        return  # a fault of Python before 3.11.8, if a collection starts while a signature is read (cpython#106905)
    if isinstance(error, allotment.InvariantError | SystemError):
        traceback.print_exception(error)
        os._exit(3)


def fork_and_use(case: Case) -> None:
    """A child that uses what it has inherited.

    Without an interpreter lock, Python leaves the lock of an object held in the child if another thread was just given
    it: a few threads that append to one list show that. So the case's threads have ended by then. Threads of streams
    may still run: the child has a list of its own, and what never changes is a frozenset, which has no lock.
    """
    things = list(case.things)
    child = os.fork()
    if child == 0:
        case.things = things
        try:
            case.run(20)
        finally:
            os._exit(0)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.WIFSIGNALED(status):
                print(f"a forked child ended by signal {os.WTERMSIG(status)}", file=sys.stderr)
                os._exit(4)
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGABRT)
    os.waitpid(child, 0)
    print("a forked child did not end", file=sys.stderr)
    os._exit(5)


# --- all cases ----------------------------------------------------------------------------------------------


def judged(number: int, steps: int, count: int | None) -> tuple[str, dict[str, int]]:
    """Return the error of a case, "" if none; and the number of events that it counts."""
    command = [sys.executable, __file__, "--only", str(number), "--steps", str(steps)]
    if count is not None:
        command += ["--threads", str(count)]
    try:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        return f"did not end: {error.stderr!r}", {}
    said = re.sub(r"^(Current thread's C stack|Extension modules: ).*$", "", done.stderr, flags=re.MULTILINE)
    if done.returncode != 0:
        return f"ended with {done.returncode}: {said[-3000:]}", {}
    return "", json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description="All public names, called with anything.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--threads", type=int, help="beside the main one, in every case; else drawn, from 0 to 3")
    parser.add_argument("--only", type=int, help="run this case here")
    options = parser.parse_args()
    if options.only is not None:
        try:
            run_case(options.only, options.steps, options.threads)
        except BaseException as error:
            noted(error)
            raise
        return 0
    end = time.monotonic() + options.seconds
    failed: dict[int, str] = {}
    counts: Counter[str] = Counter()
    number = options.seed * 1_000_000
    while time.monotonic() < end:
        wrong, counted = judged(number, options.steps, options.threads)
        counts.update(counted)
        if wrong:
            failed[number] = wrong
            print(f"{number}: {wrong}", file=sys.stderr)
        number += 1
    cases = number - options.seed * 1_000_000
    print(json.dumps({"cases": cases, "steps_each": options.steps, **counts, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
