"""Several named users of one allocator."""

import pytest

import allotment
from helpers.child import output_of
from helpers.entry_points import table_of


@pytest.fixture
def allocator():
    return allotment.Allocator("sim:1GiB")


def test_what_is_held_is_counted_by_name(allocator):
    one, other = allocator.tenant("one"), allocator.tenant("other")
    first, second = one.malloc(1000), one.malloc(3 << 20)
    other.malloc(512)
    allocator.malloc(5)
    assert allocator.tenants() == {
        "": {"blocks": 1, "allocated_bytes": 512, "requested_bytes": 5},
        "one": {"blocks": 2, "allocated_bytes": 1024 + (3 << 20), "requested_bytes": 1000 + (3 << 20)},
        "other": {"blocks": 1, "allocated_bytes": 512, "requested_bytes": 512},
    }
    one.free(first)
    allocator.free(second)
    assert set(allocator.tenants()) == {"", "other"}


def test_a_block_is_its_next_users_own(allocator):
    one, other = allocator.tenant("one"), allocator.tenant("other")
    address = one.malloc(1000)
    one.free(address)
    assert other.malloc(1000) == address
    assert set(allocator.tenants()) == {"other"}


def test_tenants_of_one_name_are_one(allocator):
    allocator.tenant("one").malloc(512)
    allocator.tenant("one").malloc(512)
    assert allocator.tenants()["one"]["blocks"] == 2


def test_a_buffer_is_its_tenants_and_frees_itself(allocator):
    buffer = allocator.tenant("one").empty(1000)
    assert allocator.tenants()["one"]["requested_bytes"] == 1000
    del buffer
    assert allocator.tenants() == {}


@pytest.mark.parametrize("context", [None, "all"])
def test_blocks_and_history_name_the_tenant(allocator, context):
    allocator.record_history("all", context)
    allocator.free(allocator.tenant("one").malloc(3 << 20))
    allocator.tenant("other").malloc(512)
    allocator.malloc(512)
    snapshot = allocator.snapshot()
    named = [(entry["action"], entry.get("tenant")) for entry in snapshot["device_traces"][0]]
    assert named == [
        ("segment_alloc", "one"),
        ("alloc", "one"),
        ("free_requested", "one"),
        ("free_completed", "one"),
        ("segment_alloc", "other"),
        ("alloc", "other"),
        ("alloc", None),
    ]
    assert all(("frames" in entry) == (context is not None) for entry in snapshot["device_traces"][0])
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert {block.get("tenant") for block in blocks if block["state"] == "active_allocated"} == {"other", None}


def test_memory_of_the_c_functions_is_the_tenants(allocator):
    allocator.record_history("all", "all")
    table = table_of(allocator.tenant("from C"))
    address = table.allocate(1000)
    assert allocator.tenants() == {"from C": {"blocks": 1, "allocated_bytes": 1024, "requested_bytes": 1000}}
    assert table.free(address) == 1
    assert allocator.tenants() == {}
    entry = allocator.snapshot()["device_traces"][0][1]
    assert entry["tenant"] == "from C"
    assert "test_memory_of_the_c_functions_is_the_tenants" in [frame["name"] for frame in entry["frames"]]


def test_a_tenant_needs_a_name(allocator):
    with pytest.raises(allotment.RequestError, match="name"):
        allocator.tenant("")


@pytest.mark.parametrize("context", [None, "all"])
def test_a_free_that_another_tenants_request_completes_is_recorded_for_its_own(context):
    printed = output_of(f"""
        import allotment
        allocator = allotment.Allocator("sim:1GiB")
        allocator.record_history("all", {context!r})
        one, other = allocator.tenant("one"), allocator.tenant("other")
        stream = allotment.Stream(allocator)
        address = one.malloc(1000)
        allocator.device.launch(stream.handle)
        allocator.record_stream(address, stream)
        one.free(address)
        allocator.device.finish()
        other.malloc(1000)
        allocator.inspection.check_invariants()
        for entry in allocator.snapshot()["device_traces"][0]:
            print(entry["action"], entry.get("tenant"))
    """)
    assert printed.splitlines() == [
        "segment_alloc one",
        "alloc one",
        "free_requested one",
        "free_completed one",
        "alloc other",
    ]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_that_another_tenants_request_releases_is_recorded_with_one_name(allocator, settings):
    allocator = allotment.Allocator("sim:64MiB", settings=settings)
    allocator.record_history("all", None)
    one, other = allocator.tenant("one"), allocator.tenant("other")
    stream = allotment.Stream(allocator)
    address = one.malloc(40 << 20)
    allocator.device.launch(stream.handle)
    allocator.record_stream(address, stream)
    one.free(address)
    other.malloc(44 << 20)
    allocator.inspection.check_invariants()
    assert {entry.get("tenant") for entry in allocator.snapshot()["device_traces"][0]} == {"one", "other"}
