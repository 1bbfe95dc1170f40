"""Writes the stubs: a `.pyi` beside each `.pyx` that Python can import something from.

    python tools/stubs              write them all
    python tools/stubs --check      name those that are out of date, and write nothing

Types and docstrings are in the code. A stub repeats the types for type checkers and editors, which cannot read Cython;
Python itself finds the docstrings in the compiled modules. A stub contains, for each name without a leading underscore:

    functions, methods      A parameter's type is its annotation, or else its C type. The result's is its annotation.
    classes                 `__init__`, or `__cinit__` where there is none; special methods that have a docstring, an
                            annotation or a fixed form; attributes that `.pyx` or `.pxd` declare as readonly or public.
    constants               Those with an annotation.

A method with one leading underscore is included too if it has annotations: other parts of the package call it.

Annotations change no code (`annotation_typing` is off), so they may use names that the module does not import. A name
is looked up in the module itself, in its imports and cimports, in Python's typing modules, and then among all classes
of the package.

The docstring of a class starts with its signature, where `inspect.signature` finds it (compiled classes have no other
place for it); complaints give the expected line:

    \"\"\"Stream(device)\\n--\\n
    Work done in order.
    \"\"\"
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from model import SOURCE
from reading import Reader
from writing import stub_text


def package_classes() -> dict[str, set[str]]:
    """Return the modules that define a class, or an alias of a type, by its name."""
    classes: dict[str, set[str]] = {}
    aliases: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py*")):
        if path.suffix not in (".py", ".pyx"):
            continue
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        for name in re.findall(r"^(?:cdef )?class (\w+)", text, re.MULTILINE):
            classes.setdefault(name, set()).add(module)
        if path.suffix == ".py":
            for name in re.findall(r"^([A-Z][a-z]\w*)(?:: TypeAlias)? = ", text, re.MULTILINE):
                aliases.setdefault(name, set()).add(module)
    return aliases | classes


def stubs(complaints: list[str]) -> dict[Path, str]:
    """Return the text of every stub, by its path; add to the complaints what prevents one."""
    classes = package_classes()
    made = {}
    for path in sorted(SOURCE.rglob("*.pyx")):
        if not re.search(r"^(def|class|cdef class|[A-Za-z]\w*: )", path.read_text(), re.MULTILINE):
            continue
        module = Reader(path, classes).read()
        if module.items:
            made[path.with_suffix(".pyi")] = stub_text(module, classes)
            complaints += module.complaints
    return made


def outdated() -> list[str]:
    """Return what is wrong with the current stubs, in lines for people."""
    lines: list[str] = []
    made = stubs(lines)
    for path, text in made.items():
        if not path.exists() or path.read_text() != text:
            lines.append(f"{path.relative_to(SOURCE.parent)} is not up to date: run `make stubs`")
    if not lines:
        left = [path for path in SOURCE.rglob("*.pyi") if path not in made]
        lines = [f"{path.relative_to(SOURCE.parent)} has no module any more: delete it" for path in left]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the stubs of all compiled modules.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a stub is not up to date")
    if parser.parse_args().check:
        lines = outdated()
        print("\n".join(lines) or "all stubs are up to date")
        return 1 if lines else 0
    complaints: list[str] = []
    made = stubs(complaints)
    changed = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        path.write_text(made[path])
    print("\n".join(complaints + [f"wrote {path.relative_to(SOURCE.parent)}" for path in changed]) or "nothing to do")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
