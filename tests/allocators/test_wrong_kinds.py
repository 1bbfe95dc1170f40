"""An object of the wrong kind is refused where it is passed, by name, and not by an internal error."""

import pytest

import allotment
from allotment import cpu, relief


class OnlyFree:
    def free(self, *arguments):
        pass


@pytest.fixture
def allocator():
    return allotment.Allocator("sim:1GiB")


WRONG = [5, None, OnlyFree(), cpu.CachingAllocator()]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_a_pool_is_memory_of_an_allocator(wrong):
    with pytest.raises(TypeError, match=f"a Pool needs an Allocator, not {type(wrong).__name__}"):
        allotment.Pool(wrong)


def test_a_pool_that_is_made_stays_what_it_is(allocator):
    with allocator.pool() as pool:
        allocator.free(allocator.malloc(1 << 20))
    before = pool.id
    with pytest.raises(allotment.PoolError, match="exists already"):
        pool.__init__(allocator)
    assert pool.id == before
    pool.close()
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_a_graph_is_made_by_a_capture(allocator, wrong):
    for arguments in [(wrong, allotment.Stream(allocator)), (allocator, wrong)]:
        with pytest.raises(TypeError, match="a Graph is made by `with capture"):
            allotment.Graph(*arguments, (0, 1))


@pytest.mark.parametrize("wrong", [5, OnlyFree(), cpu.CachingAllocator()], ids=lambda wrong: type(wrong).__name__)
def test_a_capture_needs_an_allocator_on_the_device_of_its_stream(allocator, wrong):
    with pytest.raises(allotment.CaptureError, match="which is on another device"):
        allotment.capture(allotment.Stream(allocator), allocator=wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(
    "step",
    [lambda wrong: relief.wait(wrong, seconds=1), relief.spill, relief.trim_others],
    ids=["wait", "spill", "trim"],
)
def test_a_step_of_relief_is_of_an_allocator(step, wrong):
    with pytest.raises(TypeError, match=f"needs an Allocator, not {type(wrong).__name__}"):
        step(wrong)


@pytest.mark.parametrize(("wrong", "lacks"), [(5, "allocate of int"), (OnlyFree(), "allocate of OnlyFree")])
def test_a_pool_refuses_an_allocator_of_its_own_that_lacks_a_method(allocator, wrong, lacks):
    with pytest.raises(TypeError, match=f"{lacks} must be callable"):
        allocator.pool(allocator=wrong)
    with pytest.raises(TypeError, match=f"{lacks} must be callable"):
        allocator.pools.create_or_incref((0, 77), wrong)
    allocator.inspection.check_invariants()


def test_a_condition_of_a_route_has_to_be_callable(allocator):
    with pytest.raises(TypeError, match="accepts must be callable, not int"):
        allocator.pools.begin_allocate_to_pool((0, 77), accepts=5)


def test_a_request_of_a_plan_is_a_size_or_a_size_and_a_stream(allocator):
    with pytest.raises(TypeError, match=r"a request is a size or \(size, stream\), not \(1, 2, 3\)"):
        allocator.plan([(1, 2, 3)])


def test_a_guard_is_of_a_cache():
    for make in (cpu.caching, cpu.Guard):
        with pytest.raises(TypeError, match="a cache must be a CachingAllocator or None, not int"):
            make(5)
    with cpu.caching(None):
        assert cpu.current() is None


def test_a_fill_is_a_byte():
    with pytest.raises(TypeError, match="a fill must be a byte, 0 to 255, or None, not str"):
        cpu.set_fill(on_free="x")
    with pytest.raises(allotment.RequestError, match="invalid fill: 256"):
        cpu.set_fill(on_allocate=256)
