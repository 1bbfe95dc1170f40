"""A short run of the program with random histories and settings; its long runs are started by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_drawn_histories_and_settings_end_in_errors_of_ours() -> None:
    program = Path(__file__).with_name("hostile_input.py")
    done = subprocess.run(
        [sys.executable, str(program), "--histories", "150", "--settings", "600"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["failed"] == {"histories": {}, "settings": {}}
