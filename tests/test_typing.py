"""Type checkers accept what the README shows. (`make lint` checks a longer program, typing_example.py.)"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from helpers.examples import blocks_of, is_excerpt

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = {
    path: [block.source for block in blocks_of(path) if block.language == "python" and not is_excerpt(block)]
    for path in DOCUMENTS
}
OPTIONS = ["--config-file", str(ROOT / "pyproject.toml")]
# NumPy's stubs know the buffer protocol from Python 3.12 on.
VERSIONS = ["3.11", "3.12"]
# A part of a program assumes earlier names, and writes omitted parts as dots; frameworks need not be installed.
MODULES = ", ".join(f"allotment.{name}" for name in ("cuda_core", "cupy", "multiprocessing", "numba", "numpy", "torch"))
GIVEN = f"import {MODULES}\nimport numpy as np\nfrom allotment import Backend\n"
PARTS = [f"--disable-error-code={code}" for code in ("name-defined", "no-redef", "empty-body", "import-not-found")]


def check(program: Path, *options: str) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed, which checks types")
    command = [sys.executable, "-m", "mypy", *OPTIONS, *options, str(program)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_code_of_the_readme_is_well_typed(tmp_path: Path, version: str) -> None:
    program = tmp_path / "readme.py"
    program.write_text("\n".join(PROGRAMS[ROOT / "README.md"]))
    check(program, "--strict", "--python-version", version)


@pytest.mark.slow
def test_pyright_accepts_the_code_of_the_readme(tmp_path: Path) -> None:
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed, which checks types")
    (tmp_path / "readme.py").write_text("\n".join(PROGRAMS[ROOT / "README.md"]))
    settings = {
        "include": [str(tmp_path), str(ROOT / "tests" / "typing_example.py")],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.12",
        "typeCheckingMode": "strict",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--project", str(tmp_path), "--pythonpath", sys.executable]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_the_code_of_the_documents_is_well_typed(tmp_path: Path) -> None:
    for path, parts in PROGRAMS.items():
        for number, part in enumerate(parts):
            (tmp_path / f"of_{path.stem.replace('-', '_')}_{number}.py").write_text(GIVEN + dedent(part))
    check(
        tmp_path,
        "--python-version",
        VERSIONS[0],
        "--allow-untyped-defs",
        "--check-untyped-defs",
        "--allow-subclassing-any",
        *PARTS,
    )
