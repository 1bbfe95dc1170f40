"""Memory by stack as a tree: what a flame graph draws."""

from __future__ import annotations

import pickle

from allotment.lab import explain, read_recording
from allotment.lab.explain.flame import MOST_FRAMES, MOST_NODES, Flame, flame_of
from allotment.lab.explain.study import Study
from helpers.known_causes import HOME, KIB, MIB, NO_STACK, Program, Training, forward, own, record_stream_delay


def flame(recorded: bytes) -> Flame:
    return flame_of(Study(read_recording(recorded)))


def trained() -> bytes:
    program = Program()
    training = Training(program)
    training.load()
    for _ in range(4):
        training.step()
    return program.recorded()


def sums_up(tree: Flame) -> bool:
    """Whether no node has less than the nodes below it together."""
    for totals in tree.totals.values():
        below = [0] * len(totals)
        for node in range(1, len(totals)):
            assert tree.parent[node] < node
            below[tree.parent[node]] += totals[node]
        if any(total < under for total, under in zip(totals, below, strict=True)):
            return False
    return True


def test_the_whole_is_what_explain_says() -> None:
    for recorded in (trained(), record_stream_delay().recorded()):
        tree, found = flame(recorded), explain(recorded)
        assert tree.totals["peak"][0] == found.peak.live_bytes
        assert tree.totals["waste"][0] == found.waste.total
        assert sums_up(tree)
    recording = read_recording("sample")
    assert flame_of(Study(recording)).totals["waste"][0] == explain(recording).waste.total


def test_callers_come_before_what_they_call_and_own_code_is_distinguished_from_libraries() -> None:
    program = Program()
    program.free(program.ask(3 * MIB, forward(31)))
    program.ask(2 * MIB, own(7))
    tree = flame(program.recorded())
    outermost = tree.parent.index(0)
    assert tree.label[outermost] == f"<module> {HOME}/train.py:95" and tree.is_own[outermost]
    assert tree.totals["allocated"][outermost] == 5 * MIB and tree.totals["allocated"][0] == 5 * MIB
    inner = next(place for place, label in enumerate(tree.label) if "linear.py" in label)
    assert not tree.is_own[inner] and tree.totals["allocated"][inner] == 3 * MIB
    assert not any("_call_impl" in label for label in tree.label)


def test_a_backward_pass_stands_below_the_line_that_called_it() -> None:
    tree = flame(trained())
    node = tree.label.index("(backward pass)")
    path = []
    while node > 0:
        path.append(tree.label[node])
        node = tree.parent[node]
    assert f"train {HOME}/train.py:56" in path
    assert "(no stack was recorded)" not in tree.label


def test_long_stacks_are_shortened_and_many_nodes_become_fewer() -> None:
    program = Program()
    deep = tuple((f"level{place}", f"{HOME}/tree.py", place) for place in range(10_000))
    program.ask(MIB, deep)
    for place in range(MOST_NODES + 500):
        program.free(program.ask(512, (("f", f"{HOME}/many.py", place),)))
    tree = flame(program.recorded())
    assert len(tree.label) <= MOST_NODES and sums_up(tree)
    assert "(frames left out)" in tree.label and any("level0 " in label for label in tree.label)
    assert sum("tree.py" in label for label in tree.label) == MOST_FRAMES
    assert tree.totals["allocated"][0] == MIB + 512 * (MOST_NODES + 500)


def test_without_stacks_there_is_one_node_that_says_so() -> None:
    program = Program()
    program.ask(64 * KIB, NO_STACK)
    tree = flame(program.recorded())
    assert tree.label[:2] == ["all", "(no stack was recorded)"]
    assert pickle.dumps(tree.as_json())
