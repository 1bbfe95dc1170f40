"""What README and reference promise is so: their examples run, their lists are complete, their links lead somewhere."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import allotment
from allotment._allocators.caching.sanitizer.reports import SanitizerWarning
from allotment._cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "src" / "allotment" / "_core" / "README.md"])


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """The names in code quotes that open the rows of a text's tables."""
    return re.findall(r"^\| `([^`]*)`", text, re.MULTILINE)


@pytest.mark.threads
def test_the_examples_of_the_readme_print_what_they_say() -> None:
    source = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    said = re.findall(r"# -> (.*)", source)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(source, "README.md", "exec"), {})
    assert said and printed.getvalue().splitlines() == said


@pytest.mark.threads
def test_the_examples_of_the_page_on_command_print_what_they_say() -> None:
    source = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "command.md").read_text(), re.DOTALL))
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.warns(SanitizerWarning):
        exec(compile(source, "command.md", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"# -> (.*)", source)


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


def test_the_reference_lists_every_member_of_an_allocator() -> None:
    cells = re.findall(r"^\|[^|]*\|(.*)\|$", REFERENCE.split("## `Allocator")[1], re.MULTILINE)
    listed = re.findall(r"`(\w+)`", "".join(cells))
    members = [name for name in dir(allotment.Allocator) if not name.startswith("_")]
    assert sorted(listed) == sorted(members)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "changelog.d").glob("*")), ids=lambda path: path.name)
def test_a_change_note_says_its_kind_in_its_name(path: Path) -> None:
    assert path.name == "README.md" or re.fullmatch(r"[a-z0-9-]+\.(breaking|change|addition|fix)\.md", path.name)
