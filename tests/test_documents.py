"""Tests README and reference: their examples run, their lists are complete, their links lead somewhere."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import allotment
from allotment._cli import COMMANDS
from allotment._rules import OLDEST
from helpers.c_library import compiled
from helpers.examples import Block, blocks_of, is_excerpt

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
BELOW = [ROOT / name for name in ("docs", "src", "tests", "benchmarks")]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(page for folder in BELOW for page in folder.rglob("*.md"))])


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """Return the quoted names that open the rows of a text's tables."""
    return re.findall(r"^\| `([^`]*)`", text, re.MULTILINE)


# --- the examples ---

FRAMEWORKS = {"torch": "PyTorch", "cupy": "CuPy", "numba": "Numba", "cuda_core": "cuda.core", "jax": "JAX"}


def missing_for(block: Block) -> str | None:
    """Return what a block needs that our machines may not have."""
    for module, name in FRAMEWORKS.items():
        if re.search(rf'(?<![":\w]){module}\b', block.code):
            return f"needs {name} and a GPU"
    return "needs a GPU" if '"cuda' in block.code else None


def runs(block: Block) -> bool:
    return not missing_for(block) and not is_excerpt(block)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
EXAMPLES = [block for block in BLOCKS if block.language == "python"]


def programs() -> dict[str, list[Block]]:
    """Return what a reader pastes in sequence: a page's examples, or those of a section of the README."""
    found: dict[str, list[Block]] = {}
    for block in EXAMPLES:
        if runs(block):
            page = str(block.page.relative_to(ROOT))
            found.setdefault(f"{page}, {block.section}" if page == "README.md" else page, []).append(block)
    return found


@pytest.mark.threads
@pytest.mark.parametrize("program", programs())
def test_examples_run_as_pasted_and_print_what_they_say(program: str, tmp_path: Path) -> None:
    blocks = programs()[program]
    source = "\n".join(block.source for block in blocks)
    for library in re.findall(r'"\./(\w+)\.so"', source):  # made of the page's C
        (in_c,) = [block for block in BLOCKS if block.page == blocks[0].page and block.language == "c"]
        (tmp_path / f"{library}.c").write_text(in_c.source)
        compiled(tmp_path / f"{library}.so", tmp_path / f"{library}.c")
    (tmp_path / "pasted.py").write_text(source)
    done = subprocess.run([sys.executable, "pasted.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{', '.join(map(str, blocks))}:\n{done.stderr}"
    said = re.findall(r"# -> (.*)", source)
    assert not said or done.stdout.splitlines() == said


@pytest.mark.parametrize("block", [block for block in EXAMPLES if missing_for(block)], ids=str)
def test_an_example_for_other_machines_is_at_least_python(block: Block) -> None:
    compile(block.source, str(block), "exec")
    pytest.skip(f"compiled, and not run: it {missing_for(block)}")


def test_most_examples_run() -> None:
    assert len([block for block in EXAMPLES if runs(block)]) >= 20


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language not in ("python", "c")], ids=str)
def test_a_block_that_is_python_says_so_and_is_run(block: Block) -> None:
    with pytest.raises(SyntaxError):
        compile(block.source, str(block), "exec")


# --- lists ---


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_page_for_users_names_an_internal_module(path: Path) -> None:
    assert re.findall(r"allotment(?:\.\w+)*\._\w+[\w.]*", path.read_text()) == []


def public_names(path: Path) -> Iterator[str]:
    """Return `module.name` for each name in a public module's `__all__`, without importing it."""
    module = path.parent.name if path.name == "__init__.py" else path.stem
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            yield from (f"{module}.{name.value}" for name in node.value.elts if isinstance(name, ast.Constant))


def test_the_reference_has_a_line_for_every_name_of_a_public_module() -> None:
    package = ROOT / "src" / "allotment"
    modules = [
        path for path in (*package.glob("[a-z]*.py"), *package.glob("[a-z]*/__init__.py")) if path.stem != "errors"
    ]
    names = [name for path in modules for name in public_names(path)]
    assert len(names) > 80
    assert sorted(first_cells(section(REFERENCE, "Modules"))) == sorted([*names, "torch.memory"])


def test_the_readme_opens_with_one_sentence_and_the_two_commands() -> None:
    paragraphs = README.split("\n\n")
    assert paragraphs[1].count(". ") == 0 and paragraphs[1].endswith(".")
    assert re.findall(r"^make \w+", paragraphs[2], re.MULTILINE) == ["make demo", "make test"]


def test_the_readme_lists_every_command() -> None:
    listed = [name.split()[1] for name in first_cells(section(README, "Commands"))]
    assert sorted(listed) == sorted(COMMANDS)


def test_the_reference_lists_every_public_name() -> None:
    assert sorted(first_cells(section(REFERENCE, "Names"))) == sorted(allotment.__all__)


def test_every_public_name_is_there() -> None:
    assert all(hasattr(allotment, name) for name in allotment.__all__)


def members_of(cls: type) -> list[str]:
    return sorted(name for name in dir(cls) if not name.startswith("_"))


def test_the_reference_lists_every_member_of_an_allocator_and_of_its_parts() -> None:
    own, parts = REFERENCE.split("## `Allocator")[1].split("| Part |")
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]*\|(.*)\|$", own, re.MULTILINE)))
    rows = {
        part: re.findall(r"`(\w+)`", names) for part, names in re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", parts, re.M)
    }
    assert sorted([*listed, *rows]) == members_of(allotment.Allocator)
    allocator = allotment.Allocator("sim:1GiB")
    for part, names in rows.items():
        assert sorted([*names, "allocator"]) == members_of(type(getattr(allocator, part)))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(path: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        if "://" not in link:
            target = path.parent / link if link else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def anchors(path: Path) -> set[str]:
    """Return the anchors that a code host gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_site_lists_every_page() -> None:
    site = (ROOT / "docs" / "site" / "conf.py").read_text()
    names = [page.relative_to(ROOT).with_suffix("").as_posix() for page in DOCUMENTS]
    assert [name for name in names if f'"{name}"' not in site] == []


# --- versions ---


def test_the_versions_of_python_that_are_claimed_are_those_that_were_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = [found[1] for found in (re.search(r":: (3\.\d+)$", text) for text in project["classifiers"]) if found]
    tried = re.search(r"CPython (3\.\d+) to (3\.\d+) tried", README)
    assert tried and (claimed[0], claimed[-1]) == tried.groups()
    assert project["requires-python"] == f">={claimed[0]}"


def test_the_required_pytorch_is_the_oldest_whose_rules_are_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={OLDEST}"]


def test_versions_of_pytorch_stand_only_in_the_files_that_are_named_for_them() -> None:
    step = section((ROOT / "CONTRIBUTING.md").read_text(), "Another version of PyTorch")
    named = {name for name in re.findall(r"`([\w/]+\.(?:py|pyx|hpp))`", step) if "/" in name}
    package = ROOT / "src" / "allotment"
    version = re.compile(r"""= "2\.\d\d"|"2\.\d\d"[,:)]|\(2, \d\d\)|TORCH_VERSION_MINOR""")
    found = set()
    for path in package.rglob("*"):
        if path.suffix in (".py", ".pyx", ".pxd", ".hpp", ".cc") and version.search(path.read_text()):
            found.add(path.relative_to(package).as_posix())
    assert found == {name.removeprefix("src/allotment/") for name in named}
