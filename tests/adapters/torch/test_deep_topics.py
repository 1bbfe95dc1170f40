"""In deep mode, listeners of PyTorch's allocator are called with the same facts as by PyTorch's own allocator."""

import json
import subprocess

import pytest

from helpers.torch_on_host_memory import HELPERS, NEEDED

pytestmark = NEEDED
MODES = ("native", "deep")
TOPICS = (
    "gauges", "questions", "trackers", "annotations", "compile_contexts", "user_metadata",
    "annotated_blocks", "observers", "recorder_modes", "kinds_of_history", "profiler",
    "gpu_trace", "free_memory_callbacks", "devices_not_used_yet",
    "caching_switched_off", "a_tracker_that_throws", "reserve_classes",
)  # fmt: skip

FLAGS = """
import torch
from allotment.torch._deep import building, deep
print(*building.flags(deep.torch_here()), sep="\\n")
"""


@pytest.fixture(scope="session")
def received(run, tmp_path_factory):
    """The facts that each allocator reported, by topic."""
    library = tmp_path_factory.mktemp("listener") / "listener.so"
    flags = run("-c", FLAGS).split()
    subprocess.run(["c++", *flags, str(HELPERS / "torch_listener.cc"), "-o", str(library)], check=True)
    programs = {mode: run(HELPERS / "torch_topics.py", mode, library, FAKE_CUDA_DEVICES="2") for mode in MODES}
    return {mode: json.loads(printed) for mode, printed in programs.items()}


@pytest.mark.parametrize("topic", TOPICS)
def test_listeners_get_the_same_reports_about(received, topic):
    assert received["deep"][topic] == received["native"][topic]


def test_every_topic_is_compared(received):
    assert set(received["native"]) == set(received["deep"]) == set(TOPICS)


def test_trackers_hear_of_every_kind_of_event(received):
    actions = {int(line.split()[0]) for lines in received["deep"]["trackers"][:4] for line in lines}
    assert actions == {0, 1, 2, 3, 4, 7, 8}  # mapping is of expandable segments


def test_each_mode_of_the_recorder_gives_stacks_to_more(received):
    def with_stack(mode):
        return {action for action, frames in received["deep"]["recorder_modes"][mode]["history"] if frames}

    assert with_stack("python None") == with_stack("python state") == set()
    assert with_stack("python alloc") == {"segment_alloc", "alloc", "free_requested", "free_completed", "oom"}
    assert with_stack("python all") == with_stack("python alloc") | {"segment_free"}
    segments = received["deep"]["recorder_modes"]["python state"]["segments"]
    assert "empty" in [name for name, _ in segments[0][1][0]]
