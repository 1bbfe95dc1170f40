"""File names and dotted names in prose (Markdown, comments, docstrings) name things that exist.

A file name may be given from the root, from `src/allotment` or from the folder of the text itself; a shorter one has to
fit exactly one file. Files and names of other projects are skipped by two rules: a path whose first folder this
repository does not have, and a dotted name that starts with a module that this repository imports from elsewhere.
"""

import builtins
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "allotment"
FOLDERS = ("src", "docs", "tests", "tools", "benchmarks", "examples", ".ci")
SUFFIXES = "pyx|pxd|pyi|py|sh|md|hpp|h|cc|c|toml|js|css"
CYTHON = {".py", ".pyx", ".pxd", ".pyi"}
C = {".hpp", ".h", ".cc", ".c"}

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PROSE = {
    **dict.fromkeys(CYTHON, re.compile(r'(""".*?""")|(#[^\n]*)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)),
    **dict.fromkeys(C, re.compile(r'(/\*.*?\*/)|(//[^\n]*)|"(?:\\.|[^"\\\n])*"', re.DOTALL)),
}
QUOTED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(rf"(?<![\w./*-])(?:\.\./)*[\w./*-]*\w\.(?:{SUFFIXES})(?![\w(*/]|\.\w)")
DOTTED = re.compile(r"(?<![\w./\"'*-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w/\"'-])")
DATA = re.compile(r"[\w./*-]+\.(?:pickle|json|gz|so|history|html|txt)\b")
READERS_OWN = re.compile(r"(?:python|allotment\.torch|profile)(?: \[?-.*)? [\w-]+\.py\b")  # the reader's program
DEFINED = re.compile(r"^([ \t]*)(?:ctypedef |cdef |packed )*(?:class|struct|cppclass) (\w+)(?:\(([^)]*)\))?", re.M)


@cache
def files() -> frozenset[str]:
    """Return the paths of all files of the repository, with `/`, except for built and generated ones."""
    kept = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        kept += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return frozenset(path.relative_to(ROOT).as_posix() for path in kept)


def texts() -> list[str]:
    pages = [name for name in files() if name.endswith(".md")]
    sources = [name for name in files() if name.startswith("src/") and Path(name).suffix in CYTHON - {".pyi"} | C]
    made = {f"{name.removesuffix('.pyx')}.c" for name in files() if name.endswith(".pyx")}
    return sorted({*pages, *sources} - made)


def lines_of_prose(name: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a page outside of its code blocks, or of the comments and docstrings of a source."""
    text = (ROOT / name).read_text()
    if name.endswith(".md"):
        found = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text).split("\n")
        yield from enumerate(found, 1)
        return
    for match in PROSE[Path(name).suffix].finditer(text):
        prose = match[1] or match[2]
        if prose:
            yield from enumerate(prose.split("\n"), text.count("\n", 0, match.start()) + 1)


@cache
def code_of(name: str) -> str:
    """Return a source without its comments and docstrings."""
    pattern = PROSE[Path(name).suffix]
    return pattern.sub(lambda match: "" if match[1] or match[2] else match[0], (ROOT / name).read_text())


@cache
def code(below: str = "src/") -> str:
    """Return the sources below a folder, without their comments and docstrings."""
    named = sorted(name for name in files() if name.startswith(below) and Path(name).suffix in CYTHON | C - {".c"})
    return "\n".join(code_of(name) for name in named)


# --- files ---


@cache
def by_end() -> dict[str, list[str]]:
    """Files by every suffix of their paths."""
    found = defaultdict(list)
    for name in files():
        parts = name.split("/")
        for at in range(len(parts)):
            found["/".join(parts[at:])].append(name)
    return found


@cache
def folders() -> frozenset[str]:
    return frozenset(part for name in files() for part in name.split("/")[:-1])


def wrong_with_file(file: str, page: str) -> str | None:
    if "*" in file:
        there = any(PurePosixPath(name).match(file) for name in files())
        return None if there else "no file fits it"
    if any((folder / file).is_file() for folder in (ROOT, PACKAGE, (ROOT / page).parent)):
        return None
    if "/" in file and file.split("/")[0] not in {*folders(), ".."}:
        return None  # of another project
    found = by_end().get(file, [])
    if len(found) == 1:
        return None
    return f"it could be {' or '.join(sorted(found))}: name its folder" if found else "no such file"


# --- dotted names ---


@cache
def of_others() -> frozenset[str]:
    """Return what is imported from elsewhere, also under another name (`import numpy as np`), or comes with Python."""
    found = set(sys.stdlib_module_names) | set(dir(builtins))
    found |= set(re.findall(r"^\s*(?:c?import|from) (\w+)", code(""), re.MULTILINE))
    found |= set(re.findall(r"^\s*import (?!allotment)[\w.]+ as (\w+)", code(""), re.MULTILINE))
    return frozenset(found - {"allotment"} - own_modules())


@cache
def own_modules() -> frozenset[str]:
    """Return names of modules and folders that no other project has: `_sharing`, not `torch`."""
    return frozenset(Path(name).parts[2] for name in files() if name.startswith("src/allotment/_"))


@cache
def members() -> dict[str, set[str]]:
    """Return what each of our classes and structures declares or defines, with its bases."""
    declared: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    text = code() + code("examples/")
    for match in DEFINED.finditer(text):
        body = re.compile(rf"[^\n]*\n((?:{match[1]}[ \t]+[^\n]*\n|[ \t]*\n)*)").match(text, match.start())
        lines = body[1].split("\n") if body else []
        depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        inside = [line for line in lines if len(line) - len(line.lstrip()) == depth]
        declared[match[2]] |= {word for line in inside for word in re.findall(r"\w+", line.split("=")[0])}
        declared[match[2]] |= {word for line in lines for word in re.findall(r"\bself\.(\w+)(?:: .*)? = ", line)}
        bases[match[2]] |= set(re.findall(r"\w+", match[3] or ""))

    def of(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        above = (of(base, seen | {name}) for base in bases.get(name, ()) if base not in seen | {name})
        return declared.get(name, set()).union(*above)

    return {name: of(name) for name in declared}


@cache
def any_member() -> frozenset[str]:
    """Return the attributes of any class, and all names at the top of any file."""
    at_top = re.findall(r"^(?:(?:c?p?def|class|inline) )+(?:[\w*]+ )*(\w+)|^(\w+)\b.* = ", code(), re.MULTILINE)
    modules = {Path(name).stem for name in files() if name.startswith("src/")}
    return frozenset(modules.union(*members().values(), *at_top))


def resolves(name: str) -> bool:
    """Whether `allotment.a.b` is a module or an attribute."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        place = ROOT.joinpath("src", *parts[:at])
        sources = [place / "__init__.py", *(place.with_suffix(suffix) for suffix in (".py", ".pyx"))]
        if not any(source.is_file() for source in sources):
            continue
        rest = parts[at:]
        if not rest:
            return True
        try:
            thing = importlib.import_module(".".join(parts[:at]))
        except ImportError:  # of a framework that is not installed
            return re.search(rf"\b{rest[0]}\b", code(place.relative_to(ROOT).as_posix())) is not None
        for part in rest:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


@cache
def wrong_with_name(name: str) -> str | None:
    first, *rest = name.split(".")
    if first == "allotment":
        return None if resolves(name) else "it does not exist"
    if first in of_others() or name in code():
        return None
    if first[0].isupper():
        if first not in members():
            return f"no class {first} here: if it is of another project, say of which (`torch.optim.Optimizer`)"
        return None if rest[0] in members()[first] else f"{first} has no {rest[0]}"
    missing = [part for part in rest if part not in any_member()]
    return f"nothing here has a {missing[0]}" if missing else None


# --- the check ---


def wrong_in(page: str) -> list[str]:
    """Return the names in a text that do not exist."""
    found = []
    for number, line in lines_of_prose(page):
        line = READERS_OWN.sub("", line)
        spans = QUOTED.findall(line)
        named = {file for span in spans for file in FILE.findall(span)}
        if not page.endswith(".md"):
            named |= {file for file in FILE.findall(line) if not file.endswith((".h", ".c"))}
        wrong = {file: wrong_with_file(file, page) for file in named}
        dotted = {name for span in spans for name in DOTTED.findall(DATA.sub("", FILE.sub("", span)))}
        wrong |= {name: wrong_with_name(name) for name in dotted}
        found += [f"{page}:{number}: `{name}`: {problem}" for name, problem in wrong.items() if problem]
    return found


def test_what_is_named_in_prose_exists() -> None:
    wrong = [problem for page in texts() for problem in wrong_in(page)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_there_is_much_to_check() -> None:
    lines = [line for page in texts() for _, line in lines_of_prose(page)]
    spans = [span for line in lines for span in QUOTED.findall(line)]
    assert sum(len(FILE.findall(span)) for span in spans) > 100
    assert sum(len(DOTTED.findall(FILE.sub("", span))) for span in spans) > 200


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("no_such_file.py", "README.md"),
        ("tests/no_such_folder/test_documents.py", "README.md"),
        ("../README.md", "README.md"),
        ("replay.py", "src/allotment/lab/replay/placement.py"),
        ("no_such_*.txt", "CONTRIBUTING.md"),
    ],
)
def test_a_file_that_is_not_there_or_could_be_several_is_found(file: str, page: str) -> None:
    assert wrong_with_file(file, page)


@pytest.mark.parametrize(
    "name",
    ["allotment.no_such_name", "allotment.torch.no_such_name", "Allocator.no_such_name", "NoSuchClass.free",
     "allocator.no_such_name", "Block.no_such_field"],
)  # fmt: skip
def test_a_name_that_is_not_there_is_found(name: str) -> None:
    assert wrong_with_name(name)


@pytest.mark.parametrize("name", ["torch.no_such_name", "np.zeros", "os.environ", "allotment.torch.install"])
def test_names_of_other_projects_and_those_that_are_there_pass(name: str) -> None:
    assert wrong_with_name(name) is None
