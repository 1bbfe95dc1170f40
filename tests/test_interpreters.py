"""Which Pythons import the package, which are refused with which message, and that none gets its lock switched on."""

import os
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import allotment
from allotment._libraries import LIBRARIES
from helpers.child import output_of

SOURCE = Path(allotment.__file__).parents[1]
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
without_the_lock = pytest.mark.skipif(not IS_FREE_THREADED, reason="this Python has an interpreter lock")


def last_line(program: str, *, path: Path = SOURCE) -> str:
    """Return the standard error of a program that fails."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(path)},
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@without_the_lock
def test_importing_every_compiled_module_leaves_the_interpreter_lock_off_and_says_nothing():
    program = """
        import pkgutil, sys
        from importlib import import_module
        import allotment
        for found in pkgutil.walk_packages(allotment.__path__, "allotment."):
            if found.name.rpartition(".")[2] in ("__main__", "_hooks", "cupy", "torch"):
                continue
            try:
                import_module(found.name)
            except (ImportError, allotment.UnsupportedError):
                pass    # of a framework that is not installed
        allotment.Allocator("host").malloc(1000)
        print(sys._is_gil_enabled())
    """
    assert output_of(program) == "False\n"


def test_every_compiled_module_declares_that_it_needs_no_interpreter_lock():
    setup = (Path(__file__).parents[1] / "setup.py").read_text()
    assert '"freethreading_compatible": True' in setup


@without_the_lock
def test_a_compiled_module_of_the_tests_leaves_it_off_too(tmp_path):
    program = f"""
        import sys
        from pathlib import Path
        from helpers.extension import build
        build("first_fit", Path({str(tmp_path)!r}))
        print(sys._is_gil_enabled())
    """
    assert output_of(program).splitlines()[-1] == "False"


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python cannot start one from Python")
@pytest.mark.parametrize("kind", ["isolated", "legacy"])
@pytest.mark.parametrize("first", ["import allotment", "pass"])
def test_a_subinterpreter_is_refused_in_one_line(kind, first):
    program = f"""
        import _interpreters
        {first}
        made = _interpreters.create({kind!r})
        refused = "import allotment"
        end = _interpreters.exec(made, "try:\\n    import allotment\\nexcept ImportError as error:\\n    print(error)")
        _interpreters.destroy(made)
        import allotment
        print(end, allotment.Allocator("host").malloc(0))
    """
    assert output_of(program).splitlines() == [
        "allotment does not support subinterpreters: import it in the main interpreter, and use threads or processes",
        "None 0",
    ]


def test_modules_that_were_built_for_another_python_are_named_in_one_line(tmp_path):
    package = tmp_path / "allotment"
    package.mkdir()
    for name in ("__init__.py", "_libraries/__init__.py"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text((SOURCE / "allotment" / name).read_text())
    for folder in ("_core", "_core/tools"):
        (package / folder).mkdir()
        (package / folder / "__init__.py").touch()
    for library in LIBRARIES.values():
        (package / "_libraries" / f"{library}.cpython-399-of-another.so").touch()
    said = last_line("import allotment", path=tmp_path)
    assert said.startswith("ImportError: this copy of allotment was built for another Python: it has core.cpython-399")
    assert f"core{EXTENSION_SUFFIXES[0]}" in said and sys.executable in said


@pytest.mark.parametrize(
    "change",
    [
        "sys.version_info = (3, 10, 4)",
        "sys.implementation = types.SimpleNamespace(**{**vars(sys.implementation), 'name': 'pypy'})",
    ],
)
def test_an_old_python_and_another_implementation_are_refused_in_one_line(change):
    file = str(SOURCE / "allotment" / "__init__.py")
    said = last_line(f"import sys, types\n{change}\nexec(compile(open({file!r}).read(), 'allotment', 'exec'), {{}})")
    assert said.startswith("ImportError: allotment needs CPython 3.11 or newer, and this is ")


def test_a_numpy_that_was_built_for_another_python_is_named_in_one_line(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('a page of advice\\nin many lines')\n")
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport allotment\nallotment.Allocator('host').array(5)"
    )
    said = last_line(program)
    assert said.startswith("ImportError: this Python cannot load its NumPy; install one that was built for it: ")
