"""The layers of the package: two READMEs list them, and every import points downwards."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "allotment"
CORE = PACKAGE / "_core"
SUFFIXES = {".py", ".pyx", ".pxd"}
BELOW_THE_ENGINE = {"contract", "tools", "records"}  # the parts of the core that devices may know
THE_PACKAGE_ITSELF = {"__init__", "__main__"}

LINE = re.compile(r"^\| (`\w+`(?: · `\w+`)*) \|", re.MULTILINE)
IMPORT = re.compile(
    r"^\s*from (allotment[\w.]*|\.[\w.]*) c?import (\([^)]*\)|.*)|^\s*c?import (allotment[\w.]*)", re.MULTILINE
)


def layers(readme: Path) -> list[list[str]]:
    """Return the lines of a README's tables, lowest layer first."""
    return [re.findall(r"\w+", line) for line in LINE.findall(readme.read_text())]


def heights_of(lines: list[list[str]]) -> dict[str, int]:
    return {name: height for height, line in enumerate(lines) for name in line}


PACKAGE_LAYERS = layers(PACKAGE / "README.md")
CORE_LAYERS = layers(CORE / "README.md")
PACKAGE_HEIGHTS = heights_of(PACKAGE_LAYERS)
CORE_HEIGHTS = heights_of(CORE_LAYERS)
CORE_FOLDERS = ["contract", "tools", "records", "model", "mechanism", "pytorch", "dense", "placement", "", "edge"]

SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES)
CORE_SOURCES = [path for path in SOURCES if path.is_relative_to(CORE) and path.stem != "__init__"]


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, in Python or in C, even if only for types."""
    found = set()
    for origin, names, whole in IMPORT.findall(path.read_text()):
        inside = [name for name in re.findall(r"(\w+)(?: as \w+)?", names) if is_module(f"{origin}.{name}")]
        found |= {f"{origin}.{name}" for name in inside} or {origin or whole}
    return found


def is_module(name: str) -> bool:
    place = PACKAGE.parent.joinpath(*name.split("."))
    return place.is_dir() or any(place.with_suffix(suffix).exists() for suffix in SUFFIXES)


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def places_of_types_alone(path: Path) -> set[str]:
    """Return what is imported under TYPE_CHECKING: names in annotations, which running code does not use."""
    blocks = re.findall(r"^if TYPE_CHECKING:\n((?:[ \t]+.*\n|\n)+)", path.read_text(), re.MULTILINE)
    return {found for block in blocks for found in re.findall(r"from (allotment[\w.]*) import", block)}


def label(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def filled(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """The files with at least one such module."""
    return {path: names for path, names in modules.items() if names}


def test_every_part_of_the_package_has_its_line_and_every_line_its_part() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].split(".")[0] for path in SOURCES} - THE_PACKAGE_ITSELF
    assert set(PACKAGE_HEIGHTS) == parts
    assert sum(map(len, PACKAGE_LAYERS)) == len(PACKAGE_HEIGHTS), "a name stands on two lines"


def test_every_file_of_the_core_has_its_line_and_every_line_its_file() -> None:
    assert set(CORE_HEIGHTS) == {path.stem for path in CORE_SOURCES}
    assert sum(map(len, CORE_LAYERS)) == len(CORE_HEIGHTS), "a name stands on two lines"


def test_the_folders_of_the_core_are_its_headings_in_order() -> None:
    folder_of = {path.stem: path.parent.name if path.parent != CORE else "" for path in CORE_SOURCES}
    in_order = [folder_of[name] for line in CORE_LAYERS for name in line]
    assert [name for at, name in enumerate(in_order) if name != (in_order[at - 1] if at else None)] == CORE_FOLDERS


def test_a_file_imports_only_from_layers_below_its_own() -> None:
    above = {}
    for path in SOURCES:
        if path.parent == PACKAGE and path.stem in THE_PACKAGE_ITSELF:
            continue
        own = PACKAGE_HEIGHTS[path.relative_to(PACKAGE).parts[0].split(".")[0]]
        running = imports_of(path) - places_of_types_alone(path)
        assert "allotment" not in running, f"{label(path)}: the package's front door is above all of it"
        above[label(path)] = {module for module in running if PACKAGE_HEIGHTS[layer_of(module)] > own}
    assert not filled(above)


def test_a_file_of_the_core_imports_only_what_stands_below_it() -> None:
    above = {}
    for path in CORE_SOURCES:
        known = {module.rpartition(".")[2] for module in imports_of(path) if module.startswith("allotment._core.")}
        above[label(path)] = {name for name in known if CORE_HEIGHTS[name] > CORE_HEIGHTS[path.stem]}
    assert not filled(above)


def test_the_core_knows_the_errors_and_nothing_else_of_the_package() -> None:
    outside = {label(path): {name for name in imports_of(path) if layer_of(name) != "_core"} for path in CORE_SOURCES}
    assert not filled({path: modules - {"allotment.errors"} for path, modules in outside.items()})


def test_a_device_knows_the_contract_and_the_tools_but_not_the_engine() -> None:
    known = {}
    for path in SOURCES:
        if path.is_relative_to(PACKAGE / "_devices"):
            of_the_core = {module.split(".")[2] for module in imports_of(path) if module.startswith("allotment._core.")}
            known[label(path)] = of_the_core - BELOW_THE_ENGINE
    assert not filled(known)


# --- the kinds of allocators ---


def bases_drawn() -> dict[str, str]:
    """Return each class of the tree in base.pxd, with the one before it on its branch."""
    tree = (PACKAGE / "_allocators" / "base.pxd").read_text().split("\n\n")[1]
    drawn, before = {}, ""
    for line in tree.splitlines()[1:]:
        before = before if "│" in line else "AllocatorBase"
        for name in re.findall(r"─ (\w+)", line):
            drawn[name], before = before, name
    return drawn


def test_the_tree_of_allocators_is_drawn_as_it_is() -> None:
    sources = [path.read_text() for path in PACKAGE.glob("_allocators/**/*.p*x*")]
    bases = dict(found for text in sources for found in re.findall(r"^cdef class (\w+)\((\w+)\):", text, re.MULTILINE))
    kinds = {"AllocatorBase"}
    while more := {name for name, base in bases.items() if base in kinds} - kinds:
        kinds |= more
    assert bases_drawn() == {name: bases[name] for name in kinds - {"AllocatorBase"}}


# --- the walks of docs/walks.md ---

WALKS = re.findall(r"^```\n(.*?)^```", (PACKAGE.parents[1] / "docs" / "walks.md").read_text(), re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^( *)(⇒ )?([\w/]+\.\w+)", re.MULTILINE)


def height_of(file: str) -> tuple[int, int]:
    path = PACKAGE / file
    inside = CORE_HEIGHTS[path.stem] if path.is_relative_to(CORE) else 0
    return PACKAGE_HEIGHTS[Path(file).parts[0].split(".")[0]], inside


def test_there_are_walks() -> None:
    assert len(WALKS) == 10


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split()[0])
def test_a_walk_passes_no_file_twice_and_goes_up_only_through_tables(walk: str) -> None:
    steps = STEP.findall(walk)
    assert len(steps) == len(walk.splitlines())
    files = [file for _, _, file in steps]
    assert all((PACKAGE / file).is_file() for file in files)
    assert len(set(files)) == len(files)
    callers: list[tuple[int, str]] = []  # indent and file of the open levels of the walk
    for indent, arrow, file in steps:
        while callers and callers[-1][0] >= len(indent):
            callers.pop()
        if callers and not arrow:
            assert height_of(file) <= height_of(callers[-1][1]), f"{callers[-1][1]} does not know {file}"
        callers.append((len(indent), file))
