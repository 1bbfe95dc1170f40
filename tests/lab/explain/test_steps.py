"""Steps of a run, what grows with them, and histories that have neither."""

from __future__ import annotations

import random

import pytest

from allotment.lab import explain, read_recording
from allotment.lab.explain.growth import Growth, growth_of
from allotment.lab.explain.study import Study
from helpers.known_causes import HOME, KIB, MIB, NO_STACK, Program, Training, forward, own


def study_of(program: Program) -> Study:
    return Study(read_recording(program.recorded()))


def growth(program: Program) -> Growth | None:
    return growth_of(study_of(program), None)


def trained() -> tuple[Program, Training]:
    program = Program()
    training = Training(program)
    training.load()
    return program, training


def test_steps_are_found_and_nothing_grows_in_a_loop_that_frees_what_it_makes() -> None:
    program, training = trained()
    for _ in range(12):
        training.step()
    found = study_of(program).steps
    assert found is not None and found.count == 12
    assert growth(program) is None


def test_a_leak_that_begins_later_is_reported_from_there_on() -> None:
    program, training = trained()
    for step in range(40):
        training.step()
        if step >= 11:  # from the 12th step on
            program.ask(8 * MIB, own(57))
    found = growth(program)
    assert found is not None and (found.bytes_per_step, found.since_step) == (8 * MIB, 12)
    assert found.where == f"{HOME}/train.py:57 train" and found.runs_out_at_step is None


def test_a_leak_in_some_steps_only_is_reported_by_its_mean() -> None:
    program, training = trained()
    for step in range(60):
        training.step()
        if step % 3 == 0:
            program.ask(6 * MIB, own(57))
    found = growth(program)
    assert found is not None and abs(found.bytes_per_step - 2 * MIB) < 0.1 * MIB


def test_a_leak_is_found_without_stacks_too() -> None:
    program = Program()
    for _ in range(20):
        blocks = [program.ask((3 + layer) * MIB, NO_STACK) for layer in range(6)]
        program.ask(7 * MIB + 512, NO_STACK)
        program.free(*blocks)
    found = growth(program)
    assert found is not None and found.bytes_per_step == 7 * MIB + 512


@pytest.mark.parametrize("kept", [3, 10])
def test_a_buffer_of_the_last_steps_is_no_leak(kept: int) -> None:
    program, training = trained()
    buffer: list[int] = []
    for _ in range(40):
        training.step()
        buffer.append(program.ask(4 * MIB, own(60)))
        if len(buffer) > kept:
            program.free(buffer.pop(0))
    assert growth(program) is None


def test_what_is_made_once_in_the_first_steps_is_no_leak() -> None:
    program, training = trained()
    for step in range(30):
        training.step()
        if step < 5:
            program.ask(16 * MIB, own(60))
    assert growth(program) is None


def test_a_few_steps_that_keep_less_each_time_are_no_leak() -> None:
    program, training = trained()
    for size in (256, 128, 64, 32, 16):  # such as a buffer for each batch size
        training.step()
        program.ask(size * MIB, own(45))
    assert growth(program) is None


def test_a_leak_is_seen_although_the_program_frees_everything_at_its_end() -> None:
    program, training = trained()
    kept = []
    for _ in range(20):
        training.step()
        kept.append(program.ask(5 * MIB, own(57)))
    program.free(*kept, *training.weights, *training.states)
    found = growth(program)
    assert found is not None and found.bytes_per_step == 5 * MIB


def test_two_loops_side_by_side_do_not_hide_a_leak_or_make_one_up() -> None:
    choose = random.Random(4)
    for leaks in (False, True):
        program, training = trained()
        held: list[int] = []
        for _ in range(60):
            training.step()
            for _ in range(choose.randrange(4)):  # another thread that serves requests, at its own pace
                held.append(program.ask(choose.randrange(1, 8) * MIB, own(20, "serve", "serve.py")))
                if len(held) > 6:
                    program.free(held.pop(choose.randrange(6)))
            if leaks:
                program.ask(3 * MIB, own(57))
        found = growth(program)
        assert (found is not None) is leaks
        if found is not None:
            assert found.where == f"{HOME}/train.py:57 train"


def test_histories_without_steps_have_none() -> None:
    one, once = Program(), Program()
    one.ask(4 * MIB, own(3))
    training = Training(once)
    training.load()
    training.step()
    choose = random.Random(2)
    chaos = Program()
    held: list[int] = []
    for place in range(400):
        if held and choose.random() < 0.5:
            chaos.free(held.pop(choose.randrange(len(held))))
        else:
            held.append(chaos.ask(choose.randrange(1, 1 << 24), own(place)))
    for program in (one, once, chaos):
        found = explain(program.recorded())
        assert found.steps is None and found.growth is None


def test_stacks_of_ten_thousand_frames_are_explained() -> None:
    deep = tuple(("walk", f"{HOME}/tree.py", 100 + place % 7) for place in range(10_000))
    program = Program()
    for _ in range(8):
        block = program.ask(64 * KIB, (*deep, *own(5)))
        program.free(program.ask(32 * KIB, forward(31)), block)
    found = explain(program.recorded())
    assert found.peak.live_bytes == 96 * KIB and len(found.peak.stacks[0].frames) > 10_000
