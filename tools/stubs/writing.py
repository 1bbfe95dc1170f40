"""Writes a module's interface as the text of a stub, in Ruff's format."""

from __future__ import annotations

import ast
import builtins
import sys

from model import Class, Function, Module, Variable

WIDTH = 120

WELL_KNOWN = {  # names that annotations may use without an import
    "collections.abc": "Callable Collection Generator Iterable Iterator Mapping MutableMapping Sequence",
    "concurrent.futures": "Future",
    "typing": "Any ClassVar Final Literal NamedTuple NoReturn Protocol Self SupportsIndex TypeAlias",
    "types": "ModuleType TracebackType",
    "os": "PathLike",
    "numpy.typing": "ArrayLike DTypeLike NDArray",
    "_typeshed": "ReadableBuffer WriteableBuffer",
}

# Python has a type for the buffer protocol since 3.12. For 3.11, NumPy's stubs list the classes that `frombuffer`
# accepts, and other classes cannot join that list. A base of type Any makes ours match any type, which weakens the
# checks.
BUFFER_BASE = "_HasBuffer"
BUFFER_LINES = [
    "# NumPy's stubs know the buffer protocol from Python 3.12 on; before, only a class with an unknown base will do.",
    "if sys.version_info >= (3, 12):",
    f"    {BUFFER_BASE}: TypeAlias = object",
    "else:",
    f"    {BUFFER_BASE}: TypeAlias = Any",
    "",
]
WHOLE_MODULES = {"np": "numpy", "sys": "sys"}
HOMES = {name: module for module, names in WELL_KNOWN.items() for name in names.split()}


def names_in(annotation: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(annotation.lstrip("*"), mode="eval")):
        if isinstance(node, ast.Name):
            names.add(node.id)
    return names


def names_used(module: Module) -> set[str]:
    names: set[str] = set()

    def look_at(item: Function | Class | Variable) -> None:
        if isinstance(item, Class):
            for base in item.bases:
                names.update(names_in(base))
            for member in item.members:
                look_at(member)
        elif isinstance(item, Variable):
            names.update(names_in(item.type) if item.type else ())
        else:
            names.update(names_in(item.returns))
            for parameter in item.parameters:
                annotation = parameter.partition(":")[2].partition(" = ")[0].strip()
                names.update(names_in(annotation) if annotation else ())

    for item in module.items:
        look_at(item)
    if any(has_buffer(item) for item in module.items):
        names |= {"sys", "Any", "TypeAlias"}
    return names


def has_buffer(item: Function | Class | Variable) -> bool:
    return isinstance(item, Class) and any(member.name == "__buffer__" for member in item.members)


def import_lines(module: Module, classes: dict[str, set[str]]) -> list[str]:
    """Return the imports for all names used, in Ruff's order."""
    own = {item.name for item in module.items}
    plain: set[str] = set()
    wanted: dict[str, set[str]] = {}
    for name in sorted(names_used(module) - own - set(dir(builtins))):
        if name in module.imports:
            home, there = module.imports[name]
        elif name in WHOLE_MODULES:
            home, there = WHOLE_MODULES[name], None
        elif name in HOMES:
            home, there = HOMES[name], name
        else:
            homes = nearest(classes.get(name, set()), module.name)
            if len(homes) != 1:
                found = f"in several modules: {', '.join(sorted(homes))}" if homes else "nowhere"
                module.complain(1, f"`{name}` in an annotation is defined {found}")
                continue
            home, there = next(iter(homes)), name
        if there is None:
            plain.add(f"import {home}" if home == name else f"import {home} as {name}")
        else:
            wanted.setdefault(home, set()).add(there if there == name else f"{there} as {name}")
    lines = []
    for group in range(3):
        section = sorted(one for one in plain if group_of(one.split()[1]) == group)
        for home in sorted(one for one in wanted if group_of(one) == group):
            section.append(wrapped(f"from {home} import ", ordered(wanted[home]), "(", ")"))
        if section:
            lines += [*section, ""]
    return lines


def nearest(homes: set[str], module: str) -> set[str]:
    """Return, of the modules that define a name, those that share the most folders with the module that uses it."""

    def shared(home: str) -> int:
        pairs = list(zip(home.split("."), module.split("."), strict=False))
        return next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))

    most = max(map(shared, homes), default=0)
    return {home for home in homes if shared(home) == most}


def ordered(names: set[str]) -> list[str]:
    """Sort as isort does: constants, classes, then the rest."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def group_of(module: str) -> int:
    root = module.split(".")[0]
    return 2 if root == "allotment" else 0 if root in sys.stdlib_module_names else 1


def wrapped(start: str, parts: list[str], opening: str = "", closing: str = "", end: str = "", indent: str = "") -> str:
    """Join `start`, the parts with commas, and `end`: on one line, on one indented line, or on a line each."""
    one_line = f"{indent}{start}{', '.join(parts)}{end}"
    if len(one_line) <= WIDTH:
        return one_line
    inner = f"{indent}    {', '.join(parts)}"
    if len(inner) <= WIDTH and not opening:
        return f"{indent}{start}\n{inner}\n{indent}{end}"
    body = "".join(f"{indent}    {part},\n" for part in parts)
    return f"{indent}{start}{opening}\n{body}{indent}{closing}{end}"


def function_lines(function: Function, indent: str) -> list[str]:
    lines = [f"{indent}@{decorator}" for decorator in function.decorators]
    header = wrapped(f"def {function.name}(", function.parameters, end=f") -> {function.returns}: ...", indent=indent)
    return lines + header.split("\n")


def variable_line(variable: Variable, indent: str) -> str:
    line = f"{indent}{variable.name} = ..." if variable.type is None else f"{indent}{variable.name}: {variable.type}"
    return line + ("  # type: ignore[assignment, override]" if variable.replaces else "")


def class_lines(cls: Class) -> list[str]:
    bases = [*cls.bases, BUFFER_BASE] if has_buffer(cls) else cls.bases
    lines = [f"class {cls.name}{'(' + ', '.join(bases) + ')' if bases else ''}:"]
    if has_buffer(cls):
        lines[0] += "  # type: ignore[misc]"
    if not cls.members:
        lines[0] += " ..."
    before: Function | Variable | None = None
    for member in cls.members:
        if isinstance(before, Variable) and isinstance(member, Function):
            lines.append("")
        lines += [variable_line(member, "    ")] if isinstance(member, Variable) else function_lines(member, "    ")
        before = member
    return lines


def stub_text(module: Module, classes: dict[str, set[str]]) -> str:
    lines = [f"# Made from {module.path.name} by `make stubs`: change it there.", ""]
    lines += import_lines(module, classes)
    if any(has_buffer(item) for item in module.items):
        lines += BUFFER_LINES
    before: Function | Class | Variable | None = None
    for item in module.items:
        if before is not None and not (isinstance(before, Function) and isinstance(item, Function)):
            lines.append("")
        if isinstance(item, Class):
            lines += class_lines(item)
        else:
            lines += [variable_line(item, "")] if isinstance(item, Variable) else function_lines(item, "")
        before = item
    return "\n".join(lines) + "\n"
