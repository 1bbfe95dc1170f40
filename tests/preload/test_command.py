"""`python -m allotment.preload`: programs run unchanged, and bad input causes one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allotment import preload
from allotment.errors import RequestError, SettingsError, UnsupportedError
from helpers.c_library import compiled
from helpers.preloaded import OPEN, run

DEPTH = "import ctypes\nprint(ctypes.CDLL(None).allotment_preload_depth())\n"
WITHOUT = "import ctypes\nprint(hasattr(ctypes.CDLL(None), 'allotment_preload_depth'))\n"


@pytest.fixture
def script(tmp_path):
    def write(text):
        (tmp_path / "program.py").write_text(text)
        return tmp_path / "program.py"

    return write


def lines(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_a_script_is_the_main_program_with_its_arguments_and_its_exit_code(driver, script):
    program = script(
        "import sys\nprint(__name__, sys.argv[1:], sys.path[0] == __file__.rpartition('/')[0])\nsys.exit(7)\n"
    )
    done = run(driver, "-m", "allotment.preload", program, "--limit", "9", "-x")
    assert (done.returncode, done.stdout, done.stderr) == (7, "__main__ ['--limit', '9', '-x'] True\n", "")


def test_a_module_runs_too_and_flags_of_the_interpreter_stay(driver, tmp_path):
    (tmp_path / "here.py").write_text("import sys\nprint(sys.flags.optimize, sys.argv[1:])\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)]),
        "LD_LIBRARY_PATH": str(driver),
    }
    done = subprocess.run(
        [sys.executable, "-O", "-m", "allotment.preload", "-m", "here", "a"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("1 ['a']\n", "")


@pytest.mark.parametrize(("depth", "number"), [("count", "0"), ("serve", "1")])
def test_a_depth_is_the_requested_one(driver, script, depth, number):
    assert lines(run(driver, "-m", "allotment.preload", "--depth", depth, script(DEPTH))) == ([number], [])


def test_a_missing_script_is_reported_in_a_line(driver, tmp_path):
    done = run(driver, "-m", "allotment.preload", tmp_path / "no.py")
    assert done.returncode == 2
    assert done.stderr == f"allotment.preload: can't open file '{tmp_path}/no.py': no such file\n"


def test_an_invalid_limit_is_reported_and_the_program_runs(driver, script):
    said, complaints = lines(run(driver, "-m", "allotment.preload", "--limit", "lots", script(DEPTH)))
    assert said == ["0"] and len(complaints) == 1
    assert complaints[0].startswith("allotment.preload: --limit is ignored: invalid size: 'lots'")


def test_without_a_driver_the_program_runs_as_without_us(tmp_path, script):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    said, complaints = lines(run(tmp_path, "-m", "allotment.preload", script(WITHOUT)))
    assert said == ["False"] and len(complaints) == 1 and "there is no CUDA driver" in complaints[0]


def test_a_library_that_is_preloaded_already_stays_behind_ours(driver, script, tmp_path):
    (tmp_path / "other.c").write_text("int other_number(void) { return 42; }")
    other = compiled(tmp_path / "libother.so", tmp_path / "other.c")
    program = script(DEPTH + "print(ctypes.CDLL(None).other_number())\n")
    said, complaints = lines(run(driver, "-m", "allotment.preload", program, LD_PRELOAD=str(other)))
    assert said == ["0", "42"] and len(complaints) == 1 and str(other) in complaints[0]


def test_a_process_that_is_preloaded_already_starts_programs_as_they_are(driver, script, tmp_path):
    inner = script(DEPTH)
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import subprocess, sys\n"
        f"command = [sys.executable, '-m', 'allotment.preload', '--depth', 'serve', {str(inner)!r}]\n"
        "sys.exit(subprocess.run(command).returncode)\n"
    )
    said, complaints = lines(run(driver, "-m", "allotment.preload", outer))
    assert said == ["0"] and len(complaints) == 1 and "preloaded already" in complaints[0]


def test_of_two_copies_the_first_works_and_the_second_says_so(driver, script, tmp_path):
    copy = shutil.copy(preload.library_path(), tmp_path / "second.so")
    variables = preload.environment()
    program = script(OPEN + "print(allocate(1 << 20) > 0, ctypes.CDLL(None).allotment_preload_depth())\n")
    said, complaints = lines(run(driver, program, **{**variables, "LD_PRELOAD": f"{variables['LD_PRELOAD']}:{copy}"}))
    assert said == ["True 0"]
    assert complaints == ["allotment.preload: the library is preloaded twice; the first copy is used"]


def test_a_compiled_program_is_started_with_the_library(driver, tmp_path):
    (tmp_path / "main.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
        'int main(int n, char** a) { int (*f)(void) = dlsym(RTLD_DEFAULT, "allotment_preload_depth");'
        ' printf("%d %d %s\\n", f ? f() : -9, n, a[1]); return 3; }'
    )
    subprocess.run(["cc", "-o", tmp_path / "main", tmp_path / "main.c", "-ldl"], check=True)
    done = run(driver, "-m", "allotment.preload", tmp_path / "main", "one")
    assert (done.returncode, done.stdout, done.stderr) == (3, "0 2 one\n", "")


def test_a_static_program_runs_as_without_us_after_a_line(driver, tmp_path):
    (tmp_path / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("runs"); return 0; }')
    made = subprocess.run(["cc", "-static", "-o", tmp_path / "main", tmp_path / "main.c"], capture_output=True)
    if made.returncode:
        pytest.skip("no static C library on this machine")
    said, complaints = lines(run(driver, "-m", "allotment.preload", tmp_path / "main"))
    assert said == ["runs"] and len(complaints) == 1 and "linked statically" in complaints[0]


def test_a_program_with_the_rights_of_another_user_cannot_be_preloaded(tmp_path, monkeypatch):
    from allotment.preload import _programs

    path = Path(shutil.copy(sys.executable, tmp_path / "program"))
    assert _programs.why_not(str(path)) is None
    path.chmod(0o4755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "another user's rights" in (_programs.why_not(str(path)) or "")


def test_the_environment_is_what_a_launcher_needs(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/a.so /b.so")
    found = preload.environment("serve", limit="40GiB", min_size="1MiB", stacks=True)
    assert found == {
        "LD_PRELOAD": f"{preload.library_path()}:/a.so:/b.so",
        "ALLOTMENT_PRELOAD": "serve",
        "ALLOTMENT_PRELOAD_LIMIT": str(40 << 30),
        "ALLOTMENT_PRELOAD_MIN_SIZE": str(1 << 20),
        "ALLOTMENT_PRELOAD_STACKS": "1",
    }
    assert preload.depth() is None and preload.stacks() == []


def test_a_path_that_the_variable_cannot_name_is_refused(monkeypatch, tmp_path):
    place = tmp_path / "two words" / "library.so"
    place.parent.mkdir()
    place.touch()
    monkeypatch.setattr(preload, "_LIBRARY", place)
    with pytest.raises(UnsupportedError, match="a space or a colon"):
        preload.environment()


def test_the_environment_refuses_what_it_does_not_know():
    with pytest.raises(RequestError, match="'count' or 'serve'"):
        preload.environment("deep")  # type: ignore[arg-type]
    with pytest.raises(SettingsError):
        preload.environment(limit="lots")
