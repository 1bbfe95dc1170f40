"""What a device reports about itself: its capabilities, and the operations that they stand for."""

from __future__ import annotations

import pytest

from allotment._core.contract.operations import GROUPS
from allotment._core.contract.probe import Capability, Probe
from allotment.testing._contract.ground import Ground

OPERATIONS_OF: dict[Capability, list[set[str]]] = {}
"""The operations of each capability, in groups that a device has completely or not at all; sharing has two groups."""
for group in GROUPS:
    if group.capability is not None:
        OPERATIONS_OF.setdefault(group.capability, []).append({operation.name for operation in group.operations})


class TableContract(Ground):
    """What a device reports about itself: its capabilities, and the operations that they stand for."""

    def test_plain_memory_is_always_there(self, probe: Probe) -> None:
        assert {"segment_allocate", "segment_free"} <= probe.operations

    @pytest.mark.parametrize(
        "capability", sorted(OPERATIONS_OF.keys() - {Capability.SHARE}), ids=lambda capability: capability.name.lower()
    )
    def test_a_capability_stands_for_its_operations(self, probe: Probe, capability: Capability) -> None:
        (operations,) = OPERATIONS_OF[capability]
        if capability in probe.capabilities:
            assert operations - probe.operations == set()
        elif capability is not Capability.EVENTS:
            assert operations & probe.operations == set()
        else:  # a device without events may still let one wait for it
            assert "event_record" not in probe.operations

    def test_sharing_is_of_segments_or_of_chunks_or_of_both(self, probe: Probe) -> None:
        whole = [operations for operations in OPERATIONS_OF[Capability.SHARE] if operations <= probe.operations]
        started = [operations for operations in OPERATIONS_OF[Capability.SHARE] if operations & probe.operations]
        assert whole == started
        assert bool(whole) == (Capability.SHARE in probe.capabilities)
