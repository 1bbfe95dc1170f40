"""The kind of memory of blocks, and lines for those whose stacks show none."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from allotment.lab import diff, explain, read_recording
from allotment.lab.explain.kinds import kinds_at
from allotment.lab.explain.report import explain_end
from allotment.lab.explain.study import Study
from allotment.lab.ranks.figures import figures_of
from allotment.lab.replay.run import read_source
from helpers.known_causes import (
    HOME,
    MIB,
    NO_STACK,
    TORCH,
    Program,
    Training,
    cached_workspace,
    calling_backward,
    forward,
    graph_pools,
    own,
    two_models,
)


def trained(stacks: bool = True) -> Program:
    program = Program()
    training = Training(program)
    training.load()
    for _ in range(6):
        training.step()
    if not stacks:
        program.forget_stacks()
    return program


def by_kind(study: Study, moment: int) -> dict[str, int]:
    return {each.kind: each.bytes for each in kinds_at(study, moment)}


def test_a_training_step_is_classified_to_the_byte() -> None:
    study = Study(read_recording(trained().recorded()))
    peak = by_kind(study, int(np.argmax(study.in_use)))
    assert peak["parameters"] == 16 * MIB and peak["optimizer"] == 32 * MIB
    # Four layers of 12 MiB, the batch of 2 MiB and the loss, less the one that the backward pass has freed.
    assert peak["activations"] == 50 * MIB + 4 - 4
    assert sum(peak.values()) == study.in_use.max()
    stack_of_optimizer = study.blocks.begin[study.kinds.of_life == 2].min()
    before_optimizer = by_kind(study, int(stack_of_optimizer) - 1)
    assert before_optimizer["gradients"] == 16 * MIB


def test_every_kind_says_how_sure_it_is_and_unknown_is_not_sure_at_all() -> None:
    found = explain(trained().recorded())
    assert all(each.sure >= 0.7 for each in found.peak.kinds)
    plain = Program()
    plain.ask(5 * MIB, NO_STACK)
    assert [(each.kind, each.sure) for each in explain(plain.recorded()).peak.kinds] == [("unknown", 0.0)]


def test_without_stacks_kinds_are_guesses_near_the_truth() -> None:
    reported, guessed = (explain(trained(stacks).recorded()).live_peak for stacks in (True, False))
    assert reported is not None and guessed is not None
    truth, guess = ({each.kind: each.bytes for each in peak.kinds} for peak in (reported, guessed))
    assert guess["parameters"] == truth["parameters"] and guess["optimizer"] == truth["optimizer"]
    assert all(each.sure <= 0.5 for each in guessed.kinds)


def test_graphs_workspaces_and_parameters_have_their_kinds() -> None:
    for program, kind, least in (
        (graph_pools, "graphs", 300 * MIB),
        (cached_workspace, "workspaces", 97 * MIB),
        (two_models, "parameters", 276 * MIB),
    ):
        kinds = {each.kind: each.bytes for each in explain(program().recorded()).peak.kinds}
        assert kinds[kind] >= least


def test_a_cache_of_keys_and_values_that_outlives_steps_is_a_cache() -> None:
    program = Program()
    update = (("update", "/opt/venv/lib/python3.12/site-packages/transformers/cache_utils.py", 147), *forward(31, 66))
    kept = [program.ask(4 * MIB, update) for _ in range(4)]
    for _ in range(10):
        for layer in range(4):
            kept.append(program.ask(4 * MIB, update))
            program.free(kept.pop(0), program.ask(MIB, forward(30 + layer, 66)))
    kinds = {each.kind: each.bytes for each in explain(program.recorded()).peak.kinds}
    assert kinds["caches"] >= 16 * MIB


def test_what_the_program_calls_its_memory_decides() -> None:
    program = Program()
    snapshot_of = program.ask(3 * MIB, own(4))
    assert snapshot_of
    snapshot = program.snapshot()
    for entry in snapshot["device_traces"][0]:
        entry["user_metadata"] = "kv pages"
    kinds = explain(pickle.dumps(snapshot)).peak.kinds
    assert [(each.kind, each.bytes, each.sure) for each in kinds] == [("caches", 3 * MIB, 1.0)]


def test_backward_passes_are_charged_to_the_line_that_called_them() -> None:
    holders = explain(trained().recorded()).peak.holders
    where = {holder.where for holder in holders}
    assert f"{HOME}/train.py:56 train, in the backward pass" in where
    assert not any(each.startswith("unknown") for each in where)


def test_backward_passes_are_charged_to_the_forward_line_where_pytorch_noted_it() -> None:
    program = Program()
    kept = program.ask(6 * MIB, forward(31))
    start = program.ask(4, calling_backward(56))
    program.ask(5 * MIB, NO_STACK)
    snapshot = program.snapshot()
    lines = [
        f'  File "{HOME}/train.py", line 88, in main\n    train()\n',
        f'  File "{HOME}/model.py", line 31, in forward\n    x = self.layer(x)\n',
        f'  File "{TORCH}/nn/modules/linear.py", line 125, in forward\n    return F.linear(x)\n',
    ]
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc" and not entry["frames"]:
            entry["forward_frames"] = lines
    where = {holder.where: holder.bytes for holder in explain(pickle.dumps(snapshot)).peak.holders}
    assert where[f"{HOME}/model.py:31 forward, in the backward pass"] == 5 * MIB
    assert kept and start


@pytest.mark.parametrize(
    "noted",
    [[], ["nonsense"], [3, None], "text", ['File "x", line 3, in '], ['File "x", line 99999999999999999999, in f']],
)
def test_forward_frames_that_make_no_sense_are_passed_over(noted: object) -> None:
    snapshot = trained().snapshot()
    for entry in snapshot["device_traces"][0]:
        entry["forward_frames"] = noted
    assert explain(pickle.dumps(snapshot)).peak.live_bytes > 0


def test_diff_and_stats_show_kinds(tmp_path: object) -> None:
    larger = Program()
    training = Training(larger, activation=16 * MIB)
    training.load()
    for _ in range(6):
        training.step()
    changed = diff(trained().recorded(), larger.recorded()).kinds
    assert changed[0].kind == "activations" and changed[0].b_bytes - changed[0].a_bytes == 16 * MIB
    file = f"{tmp_path}/run.pickle"
    with open(file, "wb") as stream:
        stream.write(larger.recorded())
    assert {each.kind: each.bytes for each in figures_of(file).kinds}["parameters"] == 16 * MIB


def test_a_snapshot_without_a_history_has_the_kinds_that_stacks_show() -> None:
    snapshot = trained().snapshot()
    snapshot["device_traces"] = []
    kinds = {each.kind: each.bytes for each in explain_end(read_source(pickle.dumps(snapshot))).peak.kinds}
    assert kinds == {"optimizer": 32 * MIB, "parameters": 16 * MIB}


def test_kinds_are_there_for_every_block_of_a_recording() -> None:
    recording = read_recording("sample")
    kinds = Study(recording).kinds
    assert len(kinds.of_life) == len(recording.stacks_of_all()) == len(kinds.sure)
