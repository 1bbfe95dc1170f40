"""What a program makes and gives up in great numbers leaves nothing behind."""

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
    told = output_of(
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
    allocator.check_invariants()
    """
    )
    assert told == "True\n"


def test_captures_of_a_simulated_device_are_forgotten():
    told = output_of(
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
    assert told == "True\n"
