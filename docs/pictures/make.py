"""Draw what a command prints as an SVG, for the README: `python docs/pictures/make.py`.

The commands are those that a reader would type. Only the fonts of the reader's machine are used.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 84
PICTURES = {"demo": ["demo"]}
WITHOUT_WEB_FONTS = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def printed_by(command: list[str]) -> str:
    environment = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"}
    return subprocess.run(
        [sys.executable, "-m", "allotment", *command], env=environment, capture_output=True, text=True, check=True
    ).stdout


def draw(name: str, command: list[str]) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(f"$ allotment {' '.join(command)}\n" + printed_by(command)))
    console.save_svg(str(HERE / f"{name}.svg"), title="allotment", code_format=WITHOUT_WEB_FONTS)


if __name__ == "__main__":
    for name, command in PICTURES.items():
        draw(name, command)
