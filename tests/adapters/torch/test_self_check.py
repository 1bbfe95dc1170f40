"""A release that deep mode is not verified with is checked once, in two child processes, and the verdict is kept."""

import json
import os

import pytest

from helpers.bare_packages import import_bare

TRACE = [{"action": "segment_alloc", "addr": 0x7000, "size": 4096, "stream": 0, "user_metadata": "", "frames": []}]

# Prints the same in both modes, except for what {also} adds.
CHILD = """
import json, os, sys
mode = sys.argv[1]
print("something of the program's own")
told = [{{"allocated": 512}}, {{"device_traces": [{trace}]}}]
{also}
print(json.dumps(told))
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
def built(building, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return building.Library(folder / "torch_allocator-2.99.0-abc.so", -1)


@pytest.fixture
def facts(building, tmp_path):
    return building.TorchFacts("2.99.0", "13.0", tmp_path)


def test_a_check_that_passes_is_told_once_and_kept(check, facts, built, monkeypatch):
    said, passing = [], check()
    passing.expect_equal(facts, built, said.append)
    assert "not been proven with PyTorch 2.99.0" in said[0] and "deep mode is used" in said[1]
    monkeypatch.setattr(passing, "run", lambda: pytest.fail("it ran again"))
    passing.expect_equal(facts, built, said.append)
    assert len(said) == 2


def test_what_differs_is_the_reason_and_is_kept(check, building, facts, built, monkeypatch):
    differing = check("told[0]['allocated'] += mode == 'deep'")
    for _ in range(2):
        with pytest.raises(building.CannotBuild, match=r"allocated: 512 natively, 513 in deep mode; .*mode='deep'"):
            differing.expect_equal(facts, built, print)
        monkeypatch.setattr(differing, "run", lambda: pytest.fail("it ran again"))


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


def test_a_verdict_that_another_user_could_have_written_is_not_believed(check, facts, built):
    verdict = built.path.with_suffix(".checked")
    verdict.write_text("passed")
    os.chmod(verdict, 0o666)
    said = []
    check().expect_equal(facts, built, said.append)
    assert "the check passed" in said[-1]


def test_settings_of_the_user_do_not_reach_the_check(check, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("ALLOTMENT_CONF", "placement:dense")
    seen = check("told.insert(0, [name for name in os.environ if name.endswith('_CONF') and mode == 'deep'])")
    assert seen.run() == seen.PASSED
