"""Prints what pip has to install for parts of this project, from pyproject.toml, which is the only list.

python tools/requirements.py [build] [EXTRA...]          one requirement a line, the run-time ones first
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
OWN = re.compile(rf"{PROJECT['project']['name']}\[([\w,-]+)\]")


def requirements(extra: str) -> list[str]:
    """Return the requirements of the build, or of an extra and of the extras that it names."""
    if extra == "build":
        return list(PROJECT["build-system"]["requires"])
    found: list[str] = []
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        own = OWN.fullmatch(line)
        found += [each for name in own[1].split(",") for each in requirements(name)] if own else [line]
    return found


if __name__ == "__main__":
    wanted = PROJECT["project"]["dependencies"] + [each for extra in sys.argv[1:] for each in requirements(extra)]
    print("\n".join(dict.fromkeys(line.replace(" ", "") for line in wanted)))
