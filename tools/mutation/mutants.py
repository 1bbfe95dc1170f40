"""Small changes to a program in Cython: another operator, another constant, an omitted statement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWAPS = (
    (r"(?<= )==(?= )", "!="),
    (r"(?<= )!=(?= )", "=="),
    (r"(?<= )<=(?= )", "<"),
    (r"(?<= )>=(?= )", ">"),
    (r"(?<= )<(?= )", "<="),
    (r"(?<= )>(?= )", ">="),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot ", ""),
    (r"(?<= )\+=(?= )", "-="),
    (r"(?<= )-=(?= )", "+="),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"(?<![\w.])1(?![\w.])", "2"),
    (r"(?<![\w.])0(?![\w.])", "1"),
)
STATEMENT = re.compile(r"^ +(?!return|raise|pass|break|continue|if|elif|else|while|for|with|try|except|cdef|def)\S.*$")
NOT_CODE = re.compile(r"^\s*(#|@|cimport |import |from |cdef extern|ctypedef |include )")


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int  # from 0
    before: str
    after: str

    def applied_to(self, text: str) -> str:
        lines = text.split("\n")
        assert lines[self.line] == self.before
        lines[self.line] = self.after
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.path}:{self.line + 1}: {self.before.strip()}  ->  {self.after.strip()}"


def mutants_of(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield every single change to a file, in the bodies of its functions."""
    lines = (root / path).read_text().split("\n")
    for number in body_lines(lines):
        line = lines[number]
        code, hash_, comment = line.partition("  #")
        for pattern, replacement in SWAPS:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + replacement + code[match.end() :]
                yield Mutant(path, number, line, changed + hash_ + comment)
        if STATEMENT.match(code) and is_whole(code, lines[number + 1 : number + 2]):
            yield Mutant(path, number, line, code[: len(code) - len(code.lstrip())] + "pass")


def body_lines(lines: list[str]) -> Iterator[int]:
    """Yield the numbers of the lines inside functions that are not declarations, text, or C."""
    inside = in_text = False
    for number, line in enumerate(lines):
        quotes = line.count('"""')
        was_text = in_text
        in_text ^= quotes % 2 == 1
        if was_text or quotes or not line.strip() or NOT_CODE.match(line):
            continue
        if not line.startswith(" "):
            inside = bool(re.match(r"(cdef|def|cpdef) .*\(", line)) and "struct" not in line
            continue
        if inside and not re.match(r" +cdef ", line) and not line.rstrip().endswith("nogil:"):
            yield number


def is_whole(code: str, following: list[str]) -> bool:
    """Whether a statement begins and ends on its line."""
    balanced = all(code.count(opening) == code.count(closing) for opening, closing in ("()", "[]", "{}"))
    indent = len(code) - len(code.lstrip())
    goes_on = bool(following) and len(following[0]) - len(following[0].lstrip()) > indent and following[0].strip()
    return balanced and not goes_on and not code.rstrip().endswith(("\\", ":", ","))
