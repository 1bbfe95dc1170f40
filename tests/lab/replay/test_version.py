"""Which version of PyTorch a snapshot comes from: small snapshots in the forms of several."""

import io
import pickle

import pytest

import allotment
from allotment._devices.simulated.device import SimulatedDevice
from allotment._rules import NEWEST
from allotment.lab.replay.run import read_recording
from helpers.engine import MIB, FallingAddresses


def snapshot_of(version):
    """A history that depends on which of several equal segments is taken, in the form of a version."""
    device = SimulatedDevice(1 << 30, script=FallingAddresses())
    allocator = allotment.Allocator(device, settings=f"compat:{version}")
    allocator.record_history(context=None)
    blocks = [allocator.malloc(30 * MIB) for _ in range(3)]
    for block in blocks:
        allocator.free(block)
    kept = [allocator.malloc(30 * MIB), allocator.malloc(25 * MIB)]
    allocator.free(kept[0])
    allocator.malloc(30 * MIB)
    return allocator.snapshot()


def found(snapshot, **options):
    recording = read_recording(io.BytesIO(pickle.dumps(snapshot)), **options)
    return recording.compat, recording.compat_source, recording.replay().matches_recording


def test_a_history_without_pool_ids_is_of_the_oldest_version():
    assert found(snapshot_of("2.11")) == ("2.11", "marks", True)


@pytest.mark.parametrize("version", ["2.12", "2.13", "2.15"])
def test_of_the_versions_that_marks_leave_the_newest_that_decides_as_recorded_is_taken(version):
    compat, source, matches = found(snapshot_of(version))
    assert (source, matches) == ("reproduced", True)
    assert compat == NEWEST, "all of them take the oldest segment here"


def test_a_version_that_the_newest_does_not_decide_as_is_found_by_trying():
    snapshot = snapshot_of("2.11")
    for entry in snapshot["device_traces"][0]:
        entry["pool_id"] = (0, 0)
    compat, source, matches = found(snapshot)
    assert (compat, source, matches) == (NEWEST, "assumed", False), "2.11 writes no pool ids: none is left that fits"


def test_marks_of_later_versions_leave_only_those():
    snapshot = snapshot_of("2.12")
    assert found({**snapshot, "host_segments": [], "host_traces": []})[0] == NEWEST
    for entry in snapshot["device_traces"][0]:
        entry["internal_metadata"] = "noted"
    assert found(snapshot)[:2] == ("2.15", "marks")


def test_a_field_that_names_the_version_is_believed():
    assert found({**snapshot_of("2.13"), "torch_version": "2.13.1+cu130"}) == ("2.13", "field", True)


def test_a_version_can_be_given():
    assert found(snapshot_of("2.13"), compat="2.14") == ("2.14", "given", True)


def test_the_same_run_under_another_version_is_a_what_if():
    recording = read_recording(io.BytesIO(pickle.dumps(snapshot_of("2.11"))))
    result = recording.replay("compat:2.15")
    assert (result.compat, result.compat_source, result.matches_recording) == ("2.15", "given", None)
    assert "rules of PyTorch 2.15, and recorded by 2.11" in result.reason
