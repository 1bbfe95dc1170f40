"""The table of operations, and the files generated from it."""

import subprocess
import sys
from pathlib import Path

from allotment._core.contract.operations import GROUPS, OPERATIONS, ROLES, STREAM_OPERATIONS
from allotment._core.contract.table import functions
from allotment._devices.python.methods import Methods
from allotment._devices.simulated.device import SimulatedDevice

ROOT = Path(__file__).parents[3]


def test_what_is_generated_is_fresh():
    command = [sys.executable, str(ROOT / "tools" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_the_table_has_a_place_for_every_operation():
    assert len(functions(SimulatedDevice(1 << 30))) == 1 + len(OPERATIONS)


def test_names_are_given_once():
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert len({operation.python_name for operation in OPERATIONS}) == len(names)


def test_every_role_is_known_and_every_operation_explained():
    for operation in OPERATIONS:
        assert {value.role for value in (*operation.parameters, *operation.results)} <= ROLES.keys()
        assert operation.doc.endswith(".")
    assert [group for group in GROUPS if group.is_required] == [GROUPS[0]]


def test_every_operation_that_is_not_special_is_a_documented_method():
    for operation in OPERATIONS:
        if not operation.is_special:
            assert getattr(Methods, operation.python_name).__doc__.split() == operation.doc.split()


def test_a_stream_is_at_fault_where_it_is_the_only_handle_of_the_users():
    assert {"segment_allocate", "stream_wait", "capture_end", "graph_launch"} <= STREAM_OPERATIONS
    assert not {"segment_free", "copy", "ordered_free", "event_query", "stream_create"} & STREAM_OPERATIONS
