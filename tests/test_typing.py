"""Type checkers accept what the README shows. (`make lint` checks a longer program, typing_example.py.)"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_code_of_the_readme_is_well_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed, which checks types")
    program = tmp_path / "readme.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)))
    # NumPy's stubs know the buffer protocol from Python 3.12 on.
    options = ["--strict", "--python-version", "3.12", "--config-file", ROOT / "pyproject.toml"]
    check = subprocess.run([sys.executable, "-m", "mypy", *options, program], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout
