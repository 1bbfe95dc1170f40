"""Allotment as PyTorch's allocator on a real GPU. Each process runs a program of many checks; each check is a test."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from allotment._settings import Settings
from allotment.lab.replay.run import read_recording

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = {"plain": "", "expandable": "expandable_segments:True"}
MODES = ["hooks", "deep"]


@pytest.fixture(autouse=True)
def torch_with_a_gpu(cuda_device):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.backends.cuda.is_built():
        pytest.skip("this PyTorch is built without CUDA")
    pytest.importorskip("allotment.torch._hooks", reason="the PyTorch adapter is not built")


def run(program: str, *arguments: str, conf: str = "", launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": conf, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, *launcher, str(PROGRAMS / program), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@functools.cache
def results_of(program: str, *arguments: str) -> dict[str, str]:
    done = run(program, *arguments)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        pytest.fail(f"{program} ended with {done.returncode}:\n{done.stderr[-4000:]}")


def checks_in(program: str) -> list[str]:
    return re.findall(r"^@check\ndef (\w+)", (PROGRAMS / program).read_text(), re.MULTILINE)


def passes(program: str, name: str, *arguments: str) -> None:
    if complaint := results_of(program, *arguments)[name]:
        pytest.fail(complaint, pytrace=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", checks_in("under_the_adapter.py"))
def test_under_the_adapter(name, settings, mode):
    passes("under_the_adapter.py", name, mode, settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", checks_in("graphs_under_the_adapter.py"))
def test_graphs_under_the_adapter(name, settings, mode):
    passes("graphs_under_the_adapter.py", name, mode, settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", checks_in("torch_races.py"))
def test_races_are_found_and_programs_in_order_are_not_reported(name, mode):
    passes("torch_races.py", name, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [*SETTINGS.values(), "placement:dense"], ids=[*SETTINGS, "dense"])
def test_a_model_that_sleeps_between_turns_of_generating_and_training_gives_the_same_bits(settings, mode):
    reported = {}
    for way in ("awake", "asleep"):
        done = run("rl_loop.py", mode, settings, way)
        assert done.returncode == 0, done.stderr[-4000:]
        reported[way] = json.loads(done.stdout.splitlines()[-1])
    assert reported["awake"]["rounds"] == reported["asleep"]["rounds"]
    assert len({str(each) for each in reported["awake"]["rounds"]}) == len(reported["awake"]["rounds"]) == 20
    assert reported["asleep"]["sleeps"] == 41
    assert reported["asleep"]["least_rise"] > 10 << 20


@pytest.mark.parametrize("mode", MODES)
def test_a_history_of_dense_placement_is_replayed_as_one(mode, tmp_path):
    done = run("dense_history.py", mode, str(tmp_path / "run.pickle"))
    assert done.returncode == 0, done.stderr[-4000:]
    recording = read_recording(tmp_path / "run.pickle")
    assert recording.settings == Settings.parse(
        "placement:dense,dense_slack:0.0,garbage_collection_threshold:0.9", compat=recording.settings.compat
    )
    replayed = recording.replay("expandable_segments:True")
    assert replayed.driver_calls["unmap"] == replayed.driver_calls["release"] == 0


@pytest.mark.parametrize("name", checks_in("before_the_first_use.py"))
def test_before_the_first_use(name):
    passes("before_the_first_use.py", name)


@pytest.mark.parametrize("name", checks_in("with_the_native_allocator.py"))
def test_with_the_native_allocator(name):
    passes("with_the_native_allocator.py", name)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_patched_functions_say_what_the_native_allocator_says(settings):
    reported = {}
    for mode, conf in (("native", settings), ("patched", "")):
        done = run("torch_statistics.py", mode, settings, conf=conf)
        assert done.returncode == 0, done.stderr[-4000:]
        reported[mode] = json.loads(done.stdout.splitlines()[-1])
    for title, expected in reported["native"].items():
        assert reported["patched"][title] == expected, title


@pytest.mark.parametrize(("mode", "allocator"), [("hooks", "_CUDAPluggableAllocator"), ("deep", ""), ("auto", "")])
def test_an_unchanged_script_runs_under_the_adapter(mode, allocator):
    done = run("unchanged_script.py", "7", "--flag", launcher=("-m", "allotment.torch", "--mode", mode))
    assert done.returncode == 7, done.stderr[-4000:]
    assert done.stdout.split("\n")[0].startswith(f"['7', '--flag'] 499500 {allocator}")
    assert done.stdout.strip().endswith("unchanged_script.py")


def test_an_unchanged_script_has_the_native_allocator_without_it():
    done = run("unchanged_script.py", "0")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "_CUDAPluggableAllocator" not in done.stdout


def test_threads_under_stress_find_no_byte_that_is_not_theirs():
    script = Path(__file__).parents[1] / "stress" / "torch_threads.py"
    done = subprocess.run([sys.executable, str(script), "--seconds", "5"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert ": 0 errors" in done.stdout
