"""The command as installed, from its first import on."""

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_an_interrupt_while_the_command_is_loaded_shows_no_traceback():
    module, function = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["allotment"].split(":")
    program = f"""
import sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from {module} import {function} as command
command()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
