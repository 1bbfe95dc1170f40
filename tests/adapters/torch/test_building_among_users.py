"""Another user plants a library in the place of the compiled torch allocator: it must not run, nor prevent deep mode.

The tests need root, to become two users one after the other. What the kernel does about links in a folder like /tmp
depends on `fs.protected_symlinks`; the tests hold for either value.
"""

import ctypes
import dataclasses
import os
import pickle
import shutil
import socket
import subprocess
import tempfile
import traceback
from pathlib import Path

import pytest

from helpers.bare_packages import import_bare

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become two users"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine"),
]

ATTACKER = 64_001
VICTIMS = {"a user": 64_002, "root": 0}


def as_user(user, action, when_asked=lambda: None):
    """Return what `action(ask)` returns in a forked process of that user; calling `ask()` there runs `when_asked()`
    here.

    The process does not run another program, because the user may not be able to read the folder of this clone.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            if user != 0:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            answer = pickle.dumps((True, action(lambda: theirs.send(b"ask") and theirs.recv(1))))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        theirs.send(answer)
        os._exit(0)
    theirs.close()
    with ours:
        while (answer := ours.recv(1 << 16)) == b"ask":
            when_asked()
            ours.send(b".")
    os.waitpid(child, 0)
    went_well, result = pickle.loads(answer)
    assert went_well, result
    return result


class Machine:
    """A machine with folders for everybody, two libraries, and a compiler whose result is the honest one."""

    def __init__(self, building, program, root, victim):
        self.building = building
        self.program = program
        self.victim = victim
        self.temporary, self.home, self.attackers = root / "tmp", root / "home", root / "attackers"
        self.folder = self.temporary / f"allotment-{victim}"  # any user can create it first
        self.facts = building.TorchFacts("2.11.0", "13.0", root / "torch")
        self.planted, self.honest = self.attackers / "planted.so", root / "honest.so"
        self.name = building.kept_name(self.facts, program)

    def attack(self, action):
        as_user(ATTACKER, lambda ask: action())

    def load(self, when_loading=lambda: None):
        """Return whose library the victim runs, and its path. The attacker acts between the check and the loading."""

        def load(ask):
            found = self.building.library(self.facts, lambda line: None, self.program)
            ask()
            return ctypes.c_char_p.in_dll(ctypes.CDLL(found.loadable), "whose").value.decode(), found.path

        return as_user(self.victim, load, lambda: self.attack(when_loading))


def put(link, target):
    """Make a link in one step, also in place of another one."""
    link.with_suffix(".new").symlink_to(target)
    os.replace(link.with_suffix(".new"), link)


def compile_library(path, whose):
    source = f'const char text[] = "{whose}"; const char* whose = text;'
    subprocess.run(["cc", "-x", "c", "-shared", "-fPIC", "-o", path, "-"], input=source, text=True, check=True)
    path.chmod(0o755)


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(params=VICTIMS)
def machine(request, monkeypatch, usual_umask):
    building = import_bare("allotment.torch._deep.building")
    victim = VICTIMS[request.param]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        # A copy of the sources, which both users can read.
        package = root / "allotment"
        sources = package / "torch" / "_deep"
        shutil.copytree(building.HERE, sources)
        shutil.copytree(building.PACKAGE / "include", package / "include")
        for path in [package, *package.rglob("*")]:
            path.chmod(0o755)  # the clone may be readable for one user only
        monkeypatch.setattr(building, "PACKAGE", package)
        program = dataclasses.replace(
            building.TORCH_ALLOCATOR, files=tuple(sources / file.name for file in building.TORCH_ALLOCATOR.files)
        )
        made = Machine(building, program, root, victim)
        for path, owner, mode in [
            (made.temporary, 0, 0o1777), (made.home, victim, 0o700), (made.attackers, ATTACKER, 0o755)
        ]:  # fmt: skip
            path.mkdir()
            os.chown(path, owner, owner)
            path.chmod(mode)
        compile_library(made.honest, "honest")
        compile_library(made.planted, "planted")
        os.chown(made.planted, ATTACKER, ATTACKER)
        compiler = root / "c++"
        compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {made.honest} "$2"\n')
        compiler.chmod(0o755)
        (root / "torch" / "include").mkdir(parents=True)
        (root / "include" / "crt").mkdir(parents=True)
        (root / "include" / "crt" / "host_defines.h").touch()
        (root / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
        monkeypatch.setenv("CXX", str(compiler))
        monkeypatch.setenv("CUDA_HOME", str(root))
        monkeypatch.setenv("XDG_CACHE_HOME", str(made.home))
        monkeypatch.setattr("tempfile.tempdir", str(made.temporary))
        try:
            made.attack(lambda: None)
        except AssertionError as error:
            pytest.skip(f"this process cannot become another user: {error}")
        yield made


def test_a_link_that_changes_between_check_and_loading_does_not_run_the_planted_library(machine):
    def plant():
        machine.folder.mkdir(0o755)
        put(machine.folder / machine.name, machine.honest)  # owned by root, so a check of the file does not notice

    machine.attack(plant)
    whose, where = machine.load(lambda: put(machine.folder / machine.name, machine.planted))
    assert (whose, where) == ("honest", machine.home / "allotment" / machine.name)


def test_a_folder_that_is_a_link_does_not_run_the_planted_library(machine):
    def plant():
        (machine.attackers / machine.name).symlink_to(machine.honest)
        put(machine.folder, machine.attackers)

    machine.attack(plant)
    whose, where = machine.load(lambda: put(machine.attackers / machine.name, machine.planted))
    assert (whose, where) == ("honest", machine.home / "allotment" / machine.name)


def test_a_folder_of_another_user_is_not_loaded_from_nor_written_to(machine):
    def plant():
        machine.folder.mkdir(0o777)
        machine.folder.chmod(0o777)
        shutil.copy(machine.planted, machine.folder / machine.name)

    machine.attack(plant)
    machine.home.chmod(0o500)
    (machine.home / "allotment").touch()  # so no folder is left that root could write to either
    with pytest.raises(AssertionError, match=r"CannotBuild: .*allotment.* belongs to another user"):
        machine.load()
    assert [path.name for path in machine.folder.iterdir()] == [machine.name]


def test_a_folder_of_another_user_that_cannot_be_read_does_not_prevent_deep_mode(machine):
    machine.attack(lambda: machine.folder.mkdir(0o000))
    whose, where = machine.load()
    assert (whose, where) == ("honest", machine.home / "allotment" / machine.name)


def test_a_folder_that_another_user_exchanges_while_the_compiler_runs_is_not_written_to(machine):
    os.chown(machine.home, ATTACKER, ATTACKER)
    machine.home.chmod(0o777)
    machine.attackers.chmod(0o777)
    folder, away = machine.home / "allotment", machine.home / "away"
    compiler = machine.home.parent / "c++"
    exchange = f"mv {folder} {away} && ln -s {machine.attackers} {folder}"
    compiler.write_text(compiler.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{exchange}\n"))
    whose, _ = machine.load()
    assert whose == "honest"
    assert [path.name for path in machine.attackers.iterdir()] == ["planted.so"]
    assert machine.name in [path.name for path in away.iterdir()]
