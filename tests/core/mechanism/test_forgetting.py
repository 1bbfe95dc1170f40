"""Objects that a program creates and destroys in great numbers leave nothing behind."""

import allotment
from helpers.child import output_of

GROWTH = """
    import gc
    import allotment

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def growth(once, times=3_000):
        for _ in range(times):
            once()
        before = resident()
        for _ in range(times):
            once()
        return resident() - before
"""


def test_streams_that_allocated_and_were_destroyed_are_forgotten_with_the_cache():
    printed = output_of(
        GROWTH
        + """
    allocator = allotment.Allocator("host")

    def once():
        stream, other = allotment.Stream(allocator), allotment.Stream(allocator)
        address = allocator.malloc(1000, stream)
        allocator.record_stream(address, other)
        allocator.free(address)
        stream.destroy()
        other.destroy()
        allocator.empty_cache()

    print(growth(once) < 3_000 * 200)
    allocator.inspection.check_invariants()
    """
    )
    assert printed == "True\n"


def test_captures_of_a_simulated_device_are_forgotten():
    printed = output_of(
        GROWTH
        + """
    from allotment._devices.simulated.device import SimulatedDevice
    device = SimulatedDevice(1 << 30)
    stream = device.create_stream()

    def once():
        device.begin_capture(stream)
        for _ in range(10):
            device.launch(stream)
        device.end_capture(stream)

    print(growth(once) < 3_000 * 200)
    """
    )
    assert printed == "True\n"


def test_expandable_pools_that_grew_twice_are_forgotten_when_they_are_closed():
    printed = output_of(
        GROWTH
        + """
    allocator = allotment.Allocator("sim:1GiB", settings="expandable_segments:True")

    def once():
        with allocator.pool() as pool:
            addresses = [allocator.malloc(30 << 20), allocator.malloc(30 << 20)]
        for address in addresses:
            allocator.free(address)
        pool.close()
        allocator.empty_cache()

    print(growth(once) < 3_000 * 20)
    allocator.inspection.check_invariants()
    """
    )
    assert printed == "True\n"


def test_destroyed_streams_of_a_simulated_device_are_forgotten():
    printed = output_of(
        GROWTH
        + """
    from allotment._devices.simulated.device import SimulatedDevice
    device = SimulatedDevice(1 << 30)

    def once():
        stream = device.create_stream()
        device.launch(stream)
        device.destroy_stream(stream)

    print(growth(once) < 3_000 * 20)
    """
    )
    assert printed == "True\n"


def test_statistics_keep_the_newest_of_the_pools_that_are_gone():
    allocator = allotment.Allocator("sim:1GiB")
    ids = []
    for _ in range(2500):
        with allocator.pool() as pool:
            allocator.free(allocator.malloc(1000))
        ids.append(pool.id)
        pool.close()
        allocator.empty_cache()
    with allocator.pool() as pool:
        allocator.free(allocator.malloc(1000))

    printed = {name.split(".")[1] for name in allocator.stats() if name.startswith("reserved_bytes_by_private_pools.")}

    assert printed >= {f"{first}_{second}" for first, second in [*ids[-1000:], pool.id]}
    assert len(printed) <= 2001
    allocator.inspection.check_invariants()
