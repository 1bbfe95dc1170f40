"""The compiled torch allocator: compiled once, cached by version, and a clear reason where it cannot be compiled."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import allotment
from helpers.bare_packages import import_bare

PLACES = [str(Path(allotment.__file__).parents[1]), str(Path(__file__).parents[2])]

# Writes the output that it is asked for, and one line for each run.
COMPILER = """#!/bin/sh
echo run >> "{log}"
{before}
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""

BUILD = """
import sys
sys.path[:0] = {places}
from pathlib import Path
from helpers.bare_packages import import_bare
building = import_bare("allotment.torch._deep.building")
print(building.library(building.TorchFacts("2.11.0", "13.0", Path({torch!r}))).path)
"""


@pytest.fixture(scope="session")
def building():
    return import_bare("allotment.torch._deep.building")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine with a compiler and the headers of CUDA and of PyTorch; PyTorch is at `torch`."""

    class Machine:
        torch = tmp_path / "site" / "torch"
        cache = tmp_path / "cache"
        log = tmp_path / "log"

        def compiler(self, before=""):
            program = tmp_path / "bin" / "c++"
            program.write_text(COMPILER.format(log=self.log, before=before))
            program.chmod(0o755)

        def runs(self):
            return len(self.log.read_text().splitlines()) if self.log.exists() else 0

        def kept(self):
            return sorted(path.suffix for path in (self.cache / "allotment").glob("*") if path.suffix != ".lock")

        def start(self):
            code = BUILD.format(places=PLACES, torch=str(self.torch))
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            return subprocess.Popen([sys.executable, "-c", code], text=True, start_new_session=True, **pipes)

    made = Machine()
    (tmp_path / "bin").mkdir()
    (made.torch / "include").mkdir(parents=True)
    cuda = tmp_path / "cuda" / "include"
    (cuda / "crt").mkdir(parents=True)
    (cuda / "crt" / "host_defines.h").touch()
    (cuda / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13000\n")
    made.compiler()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.cache))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "tmp").mkdir()
    return made


@pytest.fixture
def facts(building, machine):
    return building.TorchFacts("2.11.0", "13.0", machine.torch)


def kept_by(building, facts, say=print):
    """Return the place where the library is cached."""
    found = building.library(facts, say)
    os.close(found.descriptor)
    return found.path


def test_it_is_compiled_once_and_kept(building, machine, facts):
    said = []
    first = kept_by(building, facts, said.append)
    assert first.parent == machine.cache / "allotment"
    assert "compiling for PyTorch 2.11.0" in said[0] and "compiled in" in said[1]
    assert kept_by(building, facts, said.append) == first
    assert (machine.runs(), len(said)) == (1, 2)


def test_another_pytorch_has_another_one(building, machine, facts):
    first = kept_by(building, facts)
    other = building.TorchFacts("2.12.0", "13.0", machine.torch)
    assert kept_by(building, other) != first
    assert machine.runs() == 2


def test_a_pytorch_that_was_built_anew_at_the_same_place_has_another_one(building, machine, facts):
    first = kept_by(building, replace(facts, git_version="abc"))
    assert kept_by(building, replace(facts, git_version="def")) != first
    assert machine.runs() == 2


@pytest.mark.parametrize(
    ("version", "cuda", "words"),
    [("2.6.0", "12.4", "is older than"), ("2.11.0", None, "without CUDA"), ("unknown", "13.0", "is older than")],
)
def test_a_pytorch_that_it_cannot_be_compiled_for_is_refused(building, machine, version, cuda, words):
    with pytest.raises(building.CannotBuild, match=words):
        building.library(building.TorchFacts(version, cuda, machine.torch), print)
    assert machine.runs() == 0


def test_a_pytorch_for_rocm_is_refused(building, machine):
    with pytest.raises(building.CannotBuild, match="for ROCm"):
        building.library(building.TorchFacts("2.15.0", None, machine.torch, hip="7.1"), print)


def test_for_a_pytorch_that_nobody_has_seen_yet_it_is_compiled(building, machine):
    newer = building.TorchFacts("2.99.0", "13.0", machine.torch)
    assert "torch_allocator-2.99.0" in kept_by(building, newer).name
    assert machine.runs() == 1 and not building.is_proven(newer)


def test_without_a_compiler_it_says_what_to_install(building, machine, facts, monkeypatch):
    monkeypatch.setenv("PATH", str(machine.cache))
    with pytest.raises(building.CannotBuild, match=r"no C\+\+ compiler .*install g\+\+"):
        building.library(facts, print)
    monkeypatch.setenv("CXX", "not-there")
    with pytest.raises(building.CannotBuild, match="CXX names 'not-there'"):
        building.library(facts, print)


def test_without_headers_it_says_which(building, machine, facts, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(machine.cache))
    other = building.TorchFacts("2.11.0", "99.0", machine.torch)
    with pytest.raises(building.CannotBuild, match=r"headers of CUDA 99\.0"):
        building.library(other, print)
    bare = building.TorchFacts("2.11.0", "13.0", machine.torch / "elsewhere")
    with pytest.raises(building.CannotBuild, match="without its headers"):
        building.library(bare, print)


def test_headers_that_came_with_pytorch_are_completed_by_ours(building, machine):
    came = machine.torch.parent / "nvidia" / "cu77" / "include"
    came.mkdir(parents=True)
    (came / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 77010\n")
    found = building.cuda_headers(building.TorchFacts("2.11.0", "77.1", machine.torch))
    assert found == [building.OUR_CUDA_HEADERS, came]
    assert (building.OUR_CUDA_HEADERS / "crt" / "host_defines.h").exists()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(building, machine, facts):
    machine.compiler('echo "x.h:1:2: error: no such thing" >&2; exit 1')
    with pytest.raises(building.CannotBuild, match="error: no such thing"):
        building.library(facts, print)
    assert machine.kept() == []


def test_a_home_that_cannot_be_written_leads_to_temporary_files(building, machine, facts, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made below a file
    found = kept_by(building, facts)
    assert found.parent == tmp_path / "tmp" / f"allotment-{os.geteuid()}"
    assert kept_by(building, facts) == found
    assert machine.runs() == 1


def test_a_home_on_a_full_disk_leads_to_temporary_files(building, machine, facts, tmp_path):
    full = 'case $(pwd -P) in *cache/allotment) echo "ld: No space left on device" >&2; exit 1;; esac'
    machine.compiler(before=full)
    assert kept_by(building, facts).parent == tmp_path / "tmp" / f"allotment-{os.geteuid()}"
    assert machine.kept() == []


def test_where_every_disk_is_full_the_folders_are_named(building, machine, facts):
    machine.compiler(before='echo "ld: No space left on device" >&2; exit 1')
    with pytest.raises(building.CannotBuild, match=r"no folder can be written .*cache/allotment .*is full; .*is full"):
        building.library(facts, print)


def test_the_library_in_the_package_is_for_one_build_of_pytorch(building, machine, monkeypatch, tmp_path):
    monkeypatch.setattr(building, "PACKAGED", tmp_path)
    pytorch = building.TorchFacts("2.15.0+cu132", "13.2", machine.torch, git_version="abc")
    assert building.packaged_library(pytorch) is None
    (tmp_path / building.packaged_name(pytorch)).write_text("compiled")
    assert building.packaged_library(pytorch).path.parent == tmp_path
    elsewhere = replace(pytorch, folder=tmp_path)
    assert building.packaged_name(elsewhere) == building.packaged_name(pytorch)
    for other in ({"git_version": "def"}, {"cuda": "12.9"}, {"new_strings": False}, {"version": "2.15.1+cu132"}):
        assert building.packaged_library(replace(pytorch, **other)) is None


def test_a_folder_that_others_can_write_to_is_not_used(building, machine, facts, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "tmp" / f"allotment-{os.geteuid()}").mkdir()
    (tmp_path / "tmp" / f"allotment-{os.geteuid()}").chmod(0o777)
    with pytest.raises(building.CannotBuild, match=r"other users can write to .*/allotment-"):
        building.library(facts, print)


def test_a_folder_that_is_a_link_is_not_used(building, machine, facts, tmp_path):
    machine.cache.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (machine.cache / "allotment").symlink_to(tmp_path / "elsewhere")
    assert kept_by(building, facts).parent == tmp_path / "tmp" / f"allotment-{os.geteuid()}"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("how", ["a link", "open to others"])
def test_a_library_that_another_user_could_have_written_is_compiled_anew(building, machine, facts, tmp_path, how):
    kept = kept_by(building, facts)
    if how == "a link":
        kept.rename(tmp_path / "library")
        kept.symlink_to(tmp_path / "library")
    else:
        kept.chmod(0o777)
    assert kept_by(building, facts) == kept and not kept.is_symlink()
    assert machine.runs() == 2


def test_a_library_that_was_compiled_under_a_lax_umask_is_kept(building, machine, facts):
    before = os.umask(0)
    try:
        first = kept_by(building, facts)
    finally:
        os.umask(before)
    assert kept_by(building, facts) == first
    assert machine.runs() == 1


def test_a_compiler_and_a_toolkit_can_be_named_relative_to_the_current_folder(
    building, machine, facts, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "bin/c++ -Wall")
    monkeypatch.setenv("CUDA_HOME", "cuda")
    assert kept_by(building, facts).exists()
    assert building.flags(facts).count(f"-isystem{tmp_path}/cuda/include") == 1


def test_two_processes_at_once_compile_once(machine, tmp_path):
    os.mkfifo(tmp_path / "gate")
    machine.compiler(f'read line < "{tmp_path / "gate"}"')
    both = [machine.start(), machine.start()]
    with open(tmp_path / "gate", "w") as gate:  # opened once the compiler runs and can be read
        said = {0: [], 1: []}
        while not any("another process is compiling it" in line for lines in said.values() for line in lines):
            for number, process in enumerate(both):
                os.set_blocking(process.stderr.fileno(), False)
                said[number] += process.stderr.readlines()
        gate.write("go\n")
    found = {process.communicate()[0] for process in both}
    assert len(found) == 1 and [process.returncode for process in both] == [0, 0]
    assert machine.runs() == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_compilation_leaves_nothing_that_is_taken_for_it(building, machine, facts, how):
    machine.compiler(f"kill -{int(how)} $PPID; exit 1")
    process = machine.start()
    process.communicate()
    assert process.returncode != 0
    assert ".so" not in machine.kept()
    machine.compiler()
    assert kept_by(building, facts).exists()
    assert machine.kept() == [".so"]
