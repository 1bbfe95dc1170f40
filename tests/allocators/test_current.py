"""Which allocator is responsible for a device: the one made at first use, or the one installed before."""

import itertools

import pytest

import allotment
from allotment import Allocator, DeviceAllocator, PluggableAllocator, RequestError, cpu
from allotment._allocators.current import current_caching
from allotment._devices import device_name
from allotment._devices.simulated.device import SimulatedDevice
from allotment._devices.simulated.script import Script
from allotment.errors import UnsupportedError
from helpers.plugged_memory import Memory
from helpers.threads import in_a_thread

_indices = itertools.count(1000)


@pytest.fixture
def device():
    """Return the name of a device that was never used: the table of allocators belongs to the process."""
    return f"sim:1GiB#{next(_indices)}"


@pytest.fixture
def plug():
    memory = Memory()
    return PluggableAllocator(memory.alloc, memory.free)


class Late:
    """A user's device allocator, which is not initialized before its first use."""

    device = allotment.SimulatedDevice(1 << 30)
    initialized = False

    def malloc(self, size, stream=0): ...
    def free(self, address, /): ...
    def empty(self, size, stream=0): ...
    def record_stream(self, block, stream): ...
    def empty_cache(self, pool=(0, 0)): ...
    def stats(self): ...
    def reset_peak_stats(self): ...
    def memory_info(self): ...


# --- the current allocator ---


def test_the_shared_allocator_is_made_once(device):
    first = allotment.current(device)
    assert isinstance(first, Allocator)
    assert allotment.current(device) is first


@pytest.mark.threads
def test_the_shared_allocator_is_the_same_on_every_thread(device):
    assert in_a_thread(lambda: allotment.current(device)) is allotment.current(device)


def test_names_of_one_device_lead_to_one_allocator(device):
    assert allotment.current(device) is allotment.current(device.replace("1GiB", "1024MiB"))
    assert (device_name("cuda"), device_name("cuda:01"), device_name("host")) == ("cuda:0", "cuda:1", "host")
    assert device_name("sim:1KiB#0") == allotment.SimulatedDevice(1024).name


def test_a_pluggable_allocator_can_be_installed_before_the_first_use(device, plug):
    allotment.change_current_allocator(device, plug)
    assert allotment.current(device) is plug
    assert allotment.get_device_allocator(device) is plug


def test_an_installed_pluggable_allocator_is_never_replaced(device, plug):
    allotment.change_current_allocator(device, plug)
    with pytest.raises(RequestError, match="Can't swap an already initialized allocator"):
        allotment.change_current_allocator(device, PluggableAllocator(print, print))
    assert allotment.current(device) is plug


def test_a_caching_allocator_in_use_is_not_replaced(device, plug):
    native = allotment.current(device)
    with pytest.raises(RequestError, match=r"Can't swap an already initialized allocator: .* before the first call"):
        allotment.change_current_allocator(device, plug)
    assert allotment.current(device) is native


def test_an_allocator_that_is_not_initialized_can_be_replaced(device, plug):
    late = Late()
    late.device = allotment.SimulatedDevice(1 << 30, int(device.split("#")[1]))
    allotment.change_current_allocator(device, late)
    assert allotment.current(device) is late
    allotment.change_current_allocator(device, plug)
    assert allotment.current(device) is plug


def test_a_caching_allocator_with_settings_of_its_own_can_be_installed(device):
    mine = Allocator(device, settings="expandable_segments:True")
    allotment.change_current_allocator(device, mine)
    assert allotment.current(device) is mine


def test_an_allocator_on_another_device_is_refused(device):
    with pytest.raises(RequestError, match="an allocator on host cannot serve"):
        allotment.change_current_allocator(device, PluggableAllocator(print, print, device="host"))
    assert isinstance(allotment.current(device), Allocator)


@pytest.mark.parametrize("name", ["cdua", "sim", "host:1", "cuda:x", ""])
def test_an_unknown_device_is_refused(plug, name):
    for call in (allotment.current, allotment.get_device_allocator):
        with pytest.raises(RequestError, match="unknown device"):
            call(name)
    with pytest.raises(RequestError, match="unknown device"):
        allotment.change_current_allocator(name, plug)


def test_code_that_needs_a_caching_allocator_gets_no_other(device, plug):
    assert current_caching(device) is allotment.current(device)
    other = f"{device}0"
    allotment.change_current_allocator(other, plug)
    with pytest.raises(UnsupportedError, match=r"PluggableAllocator .*> is .* a caching one is needed"):
        current_caching(other)


# --- the device-generic interface ---


def test_the_cpu_has_no_device_allocator(plug):
    with pytest.raises(RequestError, match=r"^getDeviceAllocator is not supported for CPU device type\."):
        allotment.get_device_allocator("cpu")
    for call in (allotment.change_current_allocator, allotment.register_device_allocator):
        with pytest.raises(RequestError, match=r"is not supported for CPU device type\."):
            call("cpu", plug)


@pytest.mark.threads
def test_a_device_has_its_current_allocator(device):
    assert allotment.get_device_allocator(device) is allotment.current(device)
    assert allotment.get_device_allocator("host") is allotment.current("host")


def test_a_new_kind_of_device_can_be_registered(plug):
    allotment.register_device_allocator("npu:0", plug)
    assert allotment.get_device_allocator("npu:0") is allotment.current("npu:0") is plug
    with pytest.raises(RequestError, match="Can't swap an already initialized allocator"):
        allotment.register_device_allocator("npu:0", Late())


@pytest.mark.parametrize("name", ["sim:1GiB", "host", "cuda", "cuda:0"])
def test_a_device_with_a_name_of_ours_is_not_registered_beside_it(plug, name):
    with pytest.raises(RequestError, match="use change_current_allocator"):
        allotment.register_device_allocator(name, plug)


@pytest.mark.parametrize("name", [5, None, ""])
def test_a_kind_of_device_is_registered_under_a_name(plug, name):
    with pytest.raises(TypeError, match="is registered under a name"):
        allotment.register_device_allocator(name, plug)


@pytest.mark.parametrize("name", [5, None, SimulatedDevice(1 << 30)])
def test_anything_but_a_name_of_a_device_is_refused(plug, name):
    for call in (allotment.current, allotment.get_device_allocator):
        with pytest.raises(TypeError, match="a device must be a name"):
            call(name)
    with pytest.raises(TypeError, match="a device must be a name"):
        allotment.change_current_allocator(name, plug)


def test_a_registered_device_can_change_its_allocator_while_it_may():
    allotment.register_device_allocator("npu:1", Late())
    on_host = PluggableAllocator(print, print, device="host")
    allotment.change_current_allocator("npu:1", on_host)
    assert allotment.current("npu:1") is on_host


def test_an_allocator_of_another_kind_is_refused(device):
    class Other:
        def malloc(self, size, stream=0): ...

    for call in (allotment.change_current_allocator, allotment.register_device_allocator):
        with pytest.raises(TypeError, match="Other is not a DeviceAllocator: it lacks device, empty, "):
            call(device, Other())


@pytest.mark.parametrize("base", [DeviceAllocator, cpu.System, Script], ids=lambda base: base.__name__)
def test_a_class_that_inherits_an_interface_and_forgets_a_method_cannot_be_made(base):
    forgotten = sorted(base.__abstractmethods__)
    assert forgotten == sorted(name for name in vars(base) if not name.startswith("_"))
    for name in forgotten:
        members = {other: lambda self: None for other in forgotten if other != name}
        with pytest.raises(TypeError, match=rf"abstract method.* '?{name}'?$"):
            type("Forgetful", (base,), members)()


def test_a_device_allocator_that_forgets_methods_is_refused_though_its_base_is_compiled(device):
    class Forgetful(int, DeviceAllocator):  # `int` creates the object, and does not check for abstract methods
        def malloc(self, size, stream=0):
            return 4096

    for call in (allotment.change_current_allocator, allotment.register_device_allocator):
        with pytest.raises(TypeError, match="Forgetful is not a DeviceAllocator: it lacks device, empty, "):
            call(device, Forgetful())


def test_a_device_allocator_with_none_as_a_method_is_refused(device):
    forgetful = Late()
    forgetful.stats = None
    with pytest.raises(TypeError, match=r"Late is not a DeviceAllocator: it lacks stats$"):
        allotment.register_device_allocator("npu:2", forgetful)


def test_both_kinds_of_allocators_are_device_allocators(device, plug):
    assert isinstance(Allocator(device), DeviceAllocator)
    assert isinstance(plug, DeviceAllocator)


def plugged(device):
    memory = Memory()
    return PluggableAllocator(memory.alloc, memory.free, device=device)


@pytest.mark.parametrize("make", [Allocator, plugged])
def test_the_interface_means_the_same_for_both(device, make):
    allocator = make(device)
    address = allocator.malloc(1000, 5)
    allocator.record_stream(address, 6)
    assert allocator.stats()["requested_bytes.all.current"] == 1000
    assert allocator.inspection.nested_stats()["allocation"]["all"]["current"] == 1
    allocator.free(address)
    allocator.reset_peak_stats()
    allocator.inspection.reset_accumulated_stats()
    stats = allocator.stats()
    assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.allocated"] == 0
    allocator.empty_cache()
    assert allocator.memory_info()[1] == 1 << 30
