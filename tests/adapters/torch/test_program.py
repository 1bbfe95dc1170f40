"""`python -m allotment.torch` runs a program as Python itself would run it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import allotment
from helpers.bare_packages import import_bare

PLACES = [str(Path(allotment.__file__).parents[1]), str(Path(__file__).parents[2])]  # of the package and of `helpers`

STAND_IN = f"""
import sys

sys.path += {PLACES}
from helpers.torch_stand_in import pretend

pretend()
"""

RUNNER = f"""{STAND_IN}
from allotment.torch.__main__ import main

main()
"""

PROGRAM = """
import json, sys
import neighbour
from torch.cuda import get_allocator_backend

main = sys.modules["__main__"]
spec = __spec__ and __spec__.name
print(json.dumps([sys.argv, __name__, __file__, spec, vars(main) is globals(), get_allocator_backend()]))
"""


@pytest.fixture
def folder(tmp_path):
    """Make a script and its neighbour, which are also in a package."""
    try:
        import_bare("allotment.torch._hooks")
    except ImportError as error:
        pytest.skip(f"built without a C++ compiler: {error}")
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text(PROGRAM)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def run(*arguments, at, given=""):
    command = [sys.executable, "-c", RUNNER, *map(str, arguments)]
    return subprocess.run(command, cwd=at, input=given, capture_output=True, text=True, check=False)


MISSING = "allotment.torch needs torch: there is no PyTorch; install it with: pip install torch"
TOO_OLD = (
    "allotment.torch needs PyTorch 2.11 or newer, and 2.4.1 is installed; install it with: pip install 'torch>=2.11'"
)


@pytest.mark.parametrize(
    "code, words",
    [
        ("raise ImportError('there is no PyTorch')", MISSING),
        ("from types import SimpleNamespace as C; __version__ = '2.4.1'; cuda = C(memory=C())", TOO_OLD),
    ],
)
def test_without_a_pytorch_that_fits_it_says_in_one_line_what_to_install(tmp_path, code, words):
    (tmp_path / "torch.py").write_text(code)
    (tmp_path / "program.py").touch()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *PLACES])}
    for program in ("-m allotment.torch program.py", "-m allotment.torch --help", "-c 'import allotment.torch'"):
        command = [sys.executable, *shlex.split(program)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if "-m" in command:
            assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", words + "\n")
        else:
            assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"ImportError: {words}")


def reported(ended):
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_script_is_the_main_module_and_has_its_arguments(folder):
    script = folder / "program.py"
    arguments = ["--settings", "mine", "--", "-m", "--no-patch"]
    argv, name, file, spec, is_main, backend = reported(run(script, *arguments, at="/"))
    assert argv == [str(script), *arguments]
    assert (name, file, spec, is_main) == ("__main__", str(script), None, True)
    assert backend == "allotment"


def test_a_module_is_found_from_the_working_directory(folder):
    argv, name, file, spec, is_main, _ = reported(run("-m", "package.program", "--", "-x", at=folder))
    assert argv == [file, "--", "-x"]
    assert (name, file, spec, is_main) == (
        "__main__",
        str(folder / "package" / "program.py"),
        "package.program",
        True,
    )


@pytest.mark.parametrize("first, second", [("install", "raw_allocator"), ("raw_allocator", "install")])
def test_settings_are_set_once(folder, first, second):
    code = f"""{STAND_IN}
import allotment.torch
from allotment.errors import RequestError

allotment.torch.{first}(settings="expandable_segments:True")
allotment.torch.{second}(settings="expandable_segments:True")
allotment.torch.{second}()
try:
    allotment.torch.{second}(settings="")
except RequestError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use already, with other settings" in ended.stdout, ended.stderr


def test_the_patch_can_be_left_out(folder):
    *_, backend = reported(run("--no-patch", "program.py", at=folder))
    assert backend == "pluggable"


@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"]])
def test_a_program_stays_the_main_module_when_its_last_line_is_done(folder, how):
    (folder / "program.py").write_text(
        "import atexit, pickle\n"
        "class Mine: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Mine()))) is Mine))\n"
    )
    assert run(*how, at=folder).stdout == "True\n"


def test_nothing_of_ours_is_inherited_by_a_script(folder):
    (folder / "program.py").write_text("def f(x: int): ...\nprint(f.__annotations__['x'] is int, len(dir()))\n")
    alone = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=True)
    is_int, names = run("program.py", at=folder).stdout.split()
    assert is_int == "True"
    assert int(names) <= int(alone.stdout.split()[1])


@pytest.mark.parametrize(
    "last_line, status, complaint",
    [("raise SystemExit(3)", 3, ""), ("exit('bye')", 1, "bye"), ("1/0", 1, 'program.py", line 1, in <module>')],
)
def test_a_program_ends_as_it_does_without_us(folder, last_line, status, complaint):
    (folder / "program.py").write_text(last_line)
    ended = run("program.py", at=folder)
    assert ended.returncode == status
    assert complaint in ended.stderr


def test_standard_input_is_the_programs(folder):
    (folder / "program.py").write_text("print(input())")
    assert run("program.py", at=folder, given="hello\n").stdout == "hello\n"


def test_a_folder_with_a_main_module_is_a_program(folder):
    (folder / "package" / "__main__.py").write_text("import program; print(__name__)")
    (folder / "package" / "neighbour.py").touch()
    assert run("package", at=folder).stdout.endswith("__main__\n")


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["none.py"], "can't open file"),
        (["--settings", "none:1", "program.py"], "unknown setting 'none'"),
        ([], "the following arguments are required: program"),
    ],
)
def test_what_cannot_be_run_says_why(folder, arguments, complaint):
    ended = run(*arguments, at=folder)
    assert ended.returncode == 2
    assert complaint in ended.stderr


@pytest.mark.parametrize(
    "build, complaint",
    [
        ("torch.version = SimpleNamespace(hip='7.1', cuda=None)", "was built for ROCm"),
        ("del torch._C._cuda_customAllocator", "was built without CUDA"),
    ],
)
def test_a_pytorch_for_other_devices_is_refused_in_one_line(folder, build, complaint):
    code = f"""{STAND_IN}
from types import SimpleNamespace
import torch
torch.__version__ = "2.15.0"
{build}
from allotment.torch.__main__ import main
main()
"""
    for options in ([], ["--mode", "hooks"], ["--mode", "deep"], ["--pinned", "tight"]):
        command = [sys.executable, "-c", code, *options, "program.py"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert len(ended.stderr.splitlines()) == 1 and complaint in ended.stderr


def test_in_a_process_of_the_self_check_nothing_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLOTMENT_SELF_CHECK", "1")
    code = f"{STAND_IN}\nimport allotment.torch\nallotment.torch.install()\nprint(allotment.torch.installed_mode())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_dense_placement_is_one_switch_of_the_command(folder, monkeypatch):
    monkeypatch.delenv("ALLOTMENT_CONF", raising=False)
    refused = run("--dense", "--settings", "placement:torch", "program.py", at=folder)
    assert refused.returncode == 2 and "dense placement was requested" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert run("--dense", "--mode", "hooks", "program.py", at=folder).returncode == 0
