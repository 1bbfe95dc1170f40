"""The programs in examples/, as modules, and the blocks of code in Markdown."""

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    page: Path
    line: int
    section: str
    language: str
    source: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def code(self) -> str:
        """Return the source without its comments."""
        return re.sub(r"(?m)(^|\s)# .*$", "", self.source)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCED.finditer(text):
        before = text[: match.start()]
        sections = re.findall(r"^## (.*)$", before, re.MULTILINE)
        found.append(Block(page, before.count("\n") + 1, sections[-1] if sections else "", match[1], match[2]))
    return found


def is_excerpt(block: Block) -> bool:
    """Whether an example contains it word for word; tests run that example as a whole."""
    return any(block.source in path.read_text() for path in EXAMPLES.glob("*.py"))


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    spec.loader.exec_module(module)
    return module
