"""Uses most features on a GPU, for a tool that checks each access.

    compute-sanitizer --tool memcheck python tests/gpu/smoke.py

Blocks are written to their last byte on several streams, freed while in use elsewhere, captured, replayed and given
back, with plain and with expandable segments. Exits with 1 if a byte is wrong.
"""

from __future__ import annotations

import random
import sys

import allotment
from allotment import Allocator, Stream
from allotment._devices.cuda.device import CudaDevice

SIZES = (512, 5_000, 100_000, 1_500_000, 3 << 20, 11 << 20, 21 << 20)
STEPS = 200


def random_requests(device: CudaDevice, allocator: Allocator, streams: list[Stream], seed: int) -> None:
    choose = random.Random(seed)
    live: list[tuple[int, int, int]] = []  # (address, size, value)
    for step in range(STEPS):
        if live and choose.random() < 0.45:
            address, size, value = live.pop(choose.randrange(len(live)))
            device.synchronize()
            expect(device, address, size, value)
            user = choose.choice(streams)
            device.memset_async(address, value, size, user.handle)
            allocator.record_stream(address, user)
            allocator.free(address)
        else:
            size, stream = choose.choice(SIZES), choose.choice(streams)
            address = allocator.malloc(size, stream)
            device.memset_async(address, step % 256, size, stream.handle)
            live.append((address, size, step % 256))
        allocator.inspection.check_invariants()
    device.synchronize()
    for address, size, value in live:
        expect(device, address, size, value)
        allocator.free(address)


def captured_work(device: CudaDevice, allocator: Allocator, stream: Stream) -> None:
    size = 3 << 20
    warm = allocator.malloc(size, stream)
    device.memset_async(warm, 0, size, stream.handle)
    stream.synchronize()
    allocator.free(warm)
    with allotment.capture(stream, allocator=allocator) as graph:
        address = allocator.malloc(size, stream)
        device.memset_async(address, 77, size, stream.handle)
    for _ in range(10):
        graph.replay()
    stream.synchronize()
    expect(device, address, size, 77)
    allocator.free(address)
    graph.reset()


def expect(device: CudaDevice, address: int, size: int, value: int) -> None:
    for place in (address, address + size - 1):
        if device.copy_to_host(place, 1) != bytes([value]):
            sys.exit(f"the byte at {place:#x} is not {value}")


def main() -> None:
    device = CudaDevice(0)
    for settings in ("compat:newest", "compat:newest,expandable_segments:True"):
        allocator = Allocator(device, settings=settings)
        streams = [Stream.default(device), Stream(device), Stream(device)]
        random_requests(device, allocator, streams, seed=1)
        captured_work(device, allocator, streams[1])
        with allocator.pool() as pool:
            random_requests(device, allocator, streams, seed=2)
        pool.close()
        allocator.empty_cache()
        reserved = allocator.stats()["reserved_bytes.all.current"]
        if reserved:
            sys.exit(f"{reserved} bytes were not given back")
        for stream in streams[1:]:
            stream.destroy()
    print("all as it should be")


if __name__ == "__main__":
    main()
