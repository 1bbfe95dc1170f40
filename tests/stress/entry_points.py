"""Threads that call the C entry points, beside threads that use the Python API, on a host and a simulated device.

    python tests/stress/entry_points.py [--seconds 60] [--threads 6] [--seed 1] [--settings S]

Calls through ctypes release the interpreter lock, so these threads meet inside the engine. On the host device each
block is filled, and checked by the thread that frees it and by the streams recorded for it; on both devices, no address
may be allocated while it is in use. Exits with 0 if no error occurred.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import threading
import time
from pathlib import Path

import allotment

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of `helpers`, for a program that is started directly
from helpers.entry_points import table_of

LARGEST = 3 << 20
PATTERNS = {pattern: bytes([pattern]) * LARGEST for pattern in range(1, 17)}
memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]


class CFace:
    """The entry points under the names and errors of `Allocator`, so that a thread can use either."""

    def __init__(self, allocator: allotment.Allocator) -> None:
        self.table = table_of(allocator)
        self.inspection = self

    def malloc(self, size: int, stream: int) -> int:
        address = self.table.allocate_(self.table.context, size, 0, stream)
        if address is None:
            raise allotment.OutOfMemoryError
        return address

    def base_allocation(self, address: int) -> tuple[int, int]:
        size = ctypes.c_size_t()
        return self.table.base_allocation_(self.table.context, address, size) or 0, size.value

    def free(self, address: int) -> None:
        expect(self.table.free_(self.table.context, address, 0, 0, 0), "free")

    def record_stream(self, address: int, stream: int) -> None:
        expect(self.table.record_stream_(self.table.context, address, stream), "record_stream")

    def empty_cache(self) -> None:
        expect(self.table.empty_cache_(self.table.context), "empty_cache")


def expect(worked: int, name: str) -> None:
    if not worked:
        raise RuntimeError(f"{name} failed")


class DeviceStress:
    """Run all threads of one device: even ones through C, odd ones through Python."""

    def __init__(self, device: str, settings: str, seed: int) -> None:
        self.allocator = allotment.Allocator(device, settings=settings, limit="512MiB")
        self.has_memory = device == "host"
        self.is_expandable = "expandable_segments:True" in settings
        self.streams = [allotment.Stream(self.allocator) for _ in range(3)] if self.has_memory else []
        self.faces = [CFace(self.allocator), self.allocator]
        self.owners: dict[int, int] = {}
        self.seed = seed
        self.errors: list[str] = []
        self.blocks = 0

    def check(self, address: int, size: int, pattern: int) -> None:
        if self.has_memory and memcmp(address, PATTERNS[pattern], size) != 0:
            self.errors.append(f"block {address:#x} of {size} bytes was overwritten")

    def give_back(self, face: CFace | allotment.Allocator, address: int, size: int, pattern: int) -> None:
        self.check(address, size, pattern)
        del self.owners[address]
        face.free(address)

    def step(self, face: CFace | allotment.Allocator, chance: random.Random, mine: list, pattern: int) -> None:
        size = chance.choice((chance.randrange(1, 4096), chance.randrange(4096, 1 << 17), chance.randrange(1, LARGEST)))
        stream = chance.choice(self.streams).handle if self.streams else chance.randrange(3)
        try:
            address = face.malloc(size, stream)
        except allotment.OutOfMemoryError:
            while mine:
                self.give_back(face, *mine.pop())
            return
        if (other := self.owners.setdefault(address, pattern)) != pattern:
            self.errors.append(f"block {address:#x} was handed to {pattern} while {other} had it")
        self.blocks += 1
        if self.has_memory:
            ctypes.memset(address, pattern, size)
            if chance.random() < 0.1:
                # Not the block's own stream: its next user would wait for that stream's work, our memset would not.
                user = chance.choice([user for user in self.streams if user.handle != stream])
                user.submit(self.check, address, size, pattern)
                face.record_stream(address, user.handle)
        if not self.is_expandable:
            base, whole = face.inspection.base_allocation(address)
            if not base <= address < address + size <= base + whole:
                self.errors.append(f"block {address:#x} of {size} bytes lies outside of its segment")
        mine.append((address, size, pattern))
        while len(mine) > 8:
            self.give_back(face, *mine.pop(chance.randrange(len(mine))))
        if chance.random() < 0.005:
            face.empty_cache()

    def work(self, number: int, deadline: float) -> None:
        face = self.faces[number % 2]
        chance = random.Random(self.seed * 1000 + number)
        mine: list[tuple[int, int, int]] = []
        try:
            while time.monotonic() < deadline and not self.errors:
                self.step(face, chance, mine, number + 1)
            for block in mine:
                self.give_back(face, *block)
        except Exception as error:
            self.errors.append(f"thread {number}: {type(error).__name__}: {error}")

    def finish(self) -> None:
        for stream in self.streams:
            stream.synchronize()
        self.allocator.empty_cache()
        self.allocator.inspection.check_invariants()
        if left := self.allocator.stats()["reserved_bytes.all.current"]:
            self.errors.append(f"{left} bytes are still reserved after everything was freed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=6, help="for each device, 16 at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="")
    options = parser.parse_args()
    devices = [DeviceStress(name, options.settings, options.seed) for name in ("host", "sim:1GiB")]
    deadline = time.monotonic() + options.seconds
    threads = [
        threading.Thread(target=device.work, args=(number, deadline))
        for device in devices
        for number in range(options.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = []
    for device in devices:
        device.finish()
        errors += device.errors
    for error in errors[:10]:
        print(error, file=sys.stderr)
    blocks = sum(device.blocks for device in devices)
    print(f"{blocks} blocks, {len(threads)} threads, 2 devices, seed {options.seed}: {len(errors)} errors")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
