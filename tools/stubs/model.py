"""A compiled module's interface for Python, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass
class Function:
    name: str
    parameters: list[str]
    returns: str
    decorators: list[str] = field(default_factory=list)


@dataclass
class Variable:
    name: str
    type: str | None  # None: a member of an enumeration
    replaces: bool = False  # perhaps something else that a base class has under this name


@dataclass
class Class:
    name: str
    bases: list[str]
    members: list[Function | Variable] = field(default_factory=list)


@dataclass
class Module:
    """A `.pyx` file's interface for Python, and the sources of the names in its annotations."""

    name: str
    path: Path
    items: list[Function | Class | Variable] = field(default_factory=list)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # name -> module, name there
    complaints: list[str] = field(default_factory=list)  # information that a stub needs and the code lacks

    def complain(self, line: int, text: str) -> None:
        self.complaints.append(f"{self.path.relative_to(SOURCE.parent)}:{line}: {text}")
