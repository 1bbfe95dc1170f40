"""The layers of the core: its README lists them, and every import points downwards."""

import re
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "src" / "allotment" / "core"
MAY_IMPORT = {"allotment.errors"}  # of the rest of the package

LINE = re.compile(r"^\| (`\w+`(?: · `\w+`)*) \|", re.MULTILINE)
IMPORT = re.compile(
    r"^\s*from (allotment[\w.]*|\.[\w.]*) c?import (\([^)]*\)|.*)|^\s*c?import (allotment[\w.]*)", re.MULTILINE
)


def layers() -> list[list[str]]:
    """The lines of the README's table, which has the lowest first."""
    return [re.findall(r"\w+", line) for line in LINE.findall((CORE / "README.md").read_text())]


HEIGHTS = {name: height for height, line in enumerate(layers()) for name in line}
BELOW_THE_ENGINE = {name for name, height in HEIGHTS.items() if height < HEIGHTS["model"]}
FILES = sorted(path for path in CORE.iterdir() if path.suffix in (".pyx", ".pxd") and path.stem != "__init__")
BACKENDS = sorted(path for path in CORE.with_name("backends").iterdir() if path.suffix in (".pyx", ".pxd"))


def imports_of(path: Path) -> set[str]:
    """The modules of this package that a file imports, in Python or in C."""
    found = set()
    for origin, names, whole in IMPORT.findall(path.read_text()):
        if origin in ("allotment", "allotment.core"):
            found |= {f"{origin}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names)}
        else:
            found.add(origin or whole)
    return found


def core_imports_of(path: Path) -> set[str]:
    return {name.removeprefix("allotment.core.") for name in imports_of(path) if name.startswith("allotment.core.")}


def test_every_file_has_its_line_and_every_line_its_file() -> None:
    assert set(HEIGHTS) == {path.stem for path in FILES}
    assert sum(map(len, layers())) == len(HEIGHTS), "a name stands on two lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_imports_only_what_stands_below_it(path: Path) -> None:
    own = {name for name, height in HEIGHTS.items() if height == HEIGHTS[path.stem]}
    below = {name for name, height in HEIGHTS.items() if height < HEIGHTS[path.stem]}
    assert core_imports_of(path) <= below | own


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_core_imports_nothing_from_the_rest_of_the_package(path: Path) -> None:
    outside = {name for name in imports_of(path) if not name.startswith("allotment.core.")}
    assert outside <= MAY_IMPORT


@pytest.mark.parametrize("path", BACKENDS, ids=lambda path: path.name)
def test_a_backend_knows_the_contract_and_the_tools_but_not_the_engine(path: Path) -> None:
    assert core_imports_of(path) <= BELOW_THE_ENGINE


@pytest.mark.parametrize("path", [path for path in FILES if HEIGHTS.get(path.stem, 0) > HEIGHTS["probe"]])
def test_what_stands_beside_the_engine_does_not_know_it(path: Path) -> None:
    beside = {name for name, height in HEIGHTS.items() if height > HEIGHTS["probe"]}
    assert core_imports_of(path) <= BELOW_THE_ENGINE | beside
