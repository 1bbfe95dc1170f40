"""A release that deep mode is not verified with is checked once, in two child processes, and the verdict is kept."""

import json
import os
import re
import sys

import pytest

from helpers.bare_packages import import_bare

TRACE = [{"action": "segment_alloc", "addr": 0x7000, "size": 4096, "stream": 0, "user_metadata": "", "frames": []}]

# Prints the same in both modes, except for what {also} adds.
CHILD = """
import json, os, sys
mode = sys.argv[1]
print("something of the program's own")
reported = [{{"allocated": 512}}, {{"device_traces": [{trace}]}}]
{also}
print(json.dumps(reported))
"""


@pytest.fixture(scope="session")
def building():
    return import_bare("allotment.torch._deep.building")


@pytest.fixture
def check(monkeypatch):
    """Return the module; its children run a program of the test."""
    check = import_bare("allotment.torch._deep.self_check")

    def with_program(also=""):
        monkeypatch.setattr(check, "CHILD", CHILD.format(trace=json.dumps(TRACE), also=also))
        return check

    return with_program


@pytest.fixture
def built(building, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "allotment").mkdir(mode=0o700)
    return building.Library(tmp_path / "allotment" / "torch_allocator-2.99.0-abc.so", -1)


@pytest.fixture
def facts(building, tmp_path):
    return building.TorchFacts("2.99.0", "13.0", tmp_path)


def test_a_check_that_passes_is_reported_once_and_stored(check, facts, built, monkeypatch):
    said, passing = [], check()
    passing.expect_equal(facts, built, said.append)
    assert "not been proven with PyTorch 2.99.0" in said[0] and "deep mode is used" in said[1]
    monkeypatch.setattr(passing, "run", lambda: pytest.fail("it ran again"))
    passing.expect_equal(facts, built, said.append)
    assert len(said) == 2


def test_what_differs_is_the_reason_and_is_kept(check, building, facts, built, monkeypatch):
    differing = check("reported[0]['allocated'] += mode == 'deep'")
    run = differing.run
    for _ in range(2):
        with pytest.raises(
            building.CannotBuild, match=r"allocated: 512 natively, 513 in deep mode; .*mode='deep'"
        ) as no:
            differing.expect_equal(facts, built, print)
        monkeypatch.setattr(differing, "run", lambda: pytest.fail("it ran again"))
    monkeypatch.setattr(differing, "run", run)
    os.remove(re.search(r"checked again if (.*) is removed", str(no.value))[1])
    check().expect_equal(facts, built, print)


def test_a_program_that_ends_in_deep_mode_is_a_verdict_too(check):
    crashing = check("if mode == 'deep': os.abort()")
    assert "does not run in deep mode: exit status -6" in crashing.run()


@pytest.mark.parametrize("also", ["sys.exit('there is no GPU')", "if mode == 'native': sys.exit('there is no GPU')"])
def test_where_pytorch_itself_cannot_run_nothing_is_kept(check, building, facts, built, also):
    with pytest.raises(building.CannotBuild, match=r"could not be checked: .*there is no GPU"):
        check(also).expect_equal(facts, built, print)
    check().expect_equal(facts, built, print)


def test_a_check_that_hangs_ends_and_leaves_no_process(check, building, facts, built, monkeypatch):
    hanging = check("import time; time.sleep(1000)")
    monkeypatch.setattr(hanging, "LIMIT_SECONDS", 0.3)
    children, popen = [], hanging.subprocess.Popen
    monkeypatch.setattr(hanging.subprocess, "Popen", lambda *a, **k: children.append(popen(*a, **k)) or children[-1])
    with pytest.raises(building.CannotBuild, match=r"more than 0\.3 s"):
        hanging.expect_equal(facts, built, print)
    assert [child.returncode for child in children] == [-9, -9]


def test_a_verdict_that_another_user_could_have_written_is_not_believed(check, building, facts, built):
    verdict = built.path.parent / building.kept_name(facts).replace(".so", ".checked")
    verdict.write_text("passed")
    os.chmod(verdict, 0o666)
    said = []
    check().expect_equal(facts, built, said.append)
    assert "the check passed" in said[-1]


def test_a_verdict_of_another_version_of_allotment_is_not_believed(check, building, facts, built, monkeypatch):
    with pytest.raises(building.CannotBuild):
        check("if mode == 'deep': sys.exit(1)").expect_equal(facts, built, print)
    monkeypatch.setattr(sys.modules["allotment"], "__version__", "99.0")
    check().expect_equal(facts, built, print)


def test_a_verdict_is_read_where_nothing_can_be_written(check, facts, built, monkeypatch):
    passing = check()
    passing.expect_equal(facts, built, print)
    monkeypatch.setattr(passing, "one_process_at_a_time", lambda *_, **__: pytest.fail("a file was written"))
    passing.expect_equal(facts, built, print)


def test_where_the_librarys_folder_cannot_be_written_the_verdict_is_kept_elsewhere(
    check, building, facts, built, monkeypatch, tmp_path
):
    def lock_without_space(folder, *rest, **named):
        if folder.path == built.path.parent:
            raise OSError("the disk is full")
        return building.one_process_at_a_time(folder, *rest, **named)

    passing = check()
    monkeypatch.setattr(passing, "one_process_at_a_time", lock_without_space)
    passing.expect_equal(facts, built, print)
    assert [path.suffix for path in sorted((tmp_path / f"allotment-{os.geteuid()}").iterdir())] == [".checked", ".lock"]
    monkeypatch.setattr(passing, "run", lambda: pytest.fail("it ran again"))
    passing.expect_equal(facts, built, print)
    monkeypatch.setattr(passing, "folders", lambda: iter(()))
    with pytest.raises(building.CannotBuild, match="verdict on deep mode cannot be stored: the disk is full"):
        passing.expect_equal(facts, built, print)


@pytest.mark.parametrize("first", ["native", "deep"])
def test_a_gpu_that_admits_one_process_at_a_time_is_not_held_against_deep_mode(check, monkeypatch, tmp_path, first):
    """A process that meets the other one is refused, unless it is the one that came first."""
    busy = f"if mode != {first!r} and not alone: sys.exit('all CUDA-capable devices are busy or unavailable')"
    program = check(f"alone = os.path.exists({str(tmp_path / 'alone')!r})\n{busy}")
    ends_of_both = program._ends_of_both

    def ends(*, at_once):
        if not at_once:
            (tmp_path / "alone").touch()
        return ends_of_both(at_once=at_once)

    monkeypatch.setattr(program, "_ends_of_both", ends)
    assert program.run() == program.PASSED


def test_where_neither_process_runs_they_are_not_run_again(check, monkeypatch):
    failing = check("sys.exit('the driver is too old')")
    children, popen = [], failing.subprocess.Popen
    monkeypatch.setattr(failing.subprocess, "Popen", lambda *a, **k: children.append(popen(*a, **k)) or children[-1])
    with pytest.raises(failing.CannotCheck):
        failing.run()
    assert len(children) == 2


def test_a_process_without_a_gpu_uses_a_verdict_but_runs_nothing(check, building, facts, built, monkeypatch):
    passing = check()
    run = passing.run
    monkeypatch.setattr(passing, "run", lambda: pytest.fail("it ran"))
    with pytest.raises(building.CannotBuild, match=r"could not be checked: this process sees no GPU"):
        passing.expect_equal(facts, built, print, has_gpu=lambda: False)
    monkeypatch.setattr(passing, "run", run)
    passing.expect_equal(facts, built, print)
    passing.expect_equal(facts, built, print, has_gpu=lambda: False)
