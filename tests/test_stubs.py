"""A stub describes a compiled module: it names exactly what the module defines.

Stubs are made from the code (tools/stubs). One test checks that they are up to date; the others, that the compiled code
agrees with them.
"""

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import MethodDescriptorType, ModuleType

import pytest

from helpers.bare_packages import import_bare

SOURCE = Path(__file__).parents[1] / "src"

Function = ast.FunctionDef


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


COMPILED = {module_name(path): path for path in sorted(SOURCE.rglob("*.pyx"))}
STUBS = {name: path.with_suffix(".pyi") for name, path in COMPILED.items() if path.with_suffix(".pyi").exists()}


@cache
def modules() -> dict[str, ModuleType]:
    """Return the compiled modules by name: on Linux all, except those that need a missing C++ compiler."""
    return {name: module for name in COMPILED if (module := imported(name))}


def imported(name: str) -> ModuleType | None:
    try:
        if name.startswith(("allotment.torch.", "allotment.cupy.")):
            return import_bare(name)
        return importlib.import_module(name)
    except ImportError:
        if sys.platform == "linux" and not name.startswith(("allotment.torch.", "allotment.cupy.")):
            raise
        return None


def is_public(name: str) -> bool:
    return not name.startswith("_")


def public_names_of(module: ModuleType) -> set[str]:
    """Return the functions and classes that a module defines for Python. A class without public members is a record of
    the compiled code, whose type Python sees by accident.
    """
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {
        name
        for name, value in own.items()
        if is_public(name) and (not inspect.isclass(value) or issubclass(value, Exception) or public_members(value))
    }


def public_members(cls: type) -> set[str]:
    return {name for name in vars(cls) if is_public(name)}


def defined_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return what a stub's module or class defines; a property's setter counts with the property."""
    names: dict[str, ast.stmt] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.setdefault(name, statement)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.setdefault(name, statement)
    return {name: statement for name, statement in names.items() if is_public(name)}


@cache
def stub_of(name: str) -> dict[str, ast.stmt]:
    return defined_names(ast.parse(STUBS[name].read_text()).body)


def classes() -> Iterator[tuple[str, type, ast.ClassDef]]:
    """Return every class of the stubs: dotted name, real class, and its definition in the stub."""
    for module in STUBS.keys() & modules().keys():
        for name, statement in stub_of(module).items():
            if isinstance(statement, ast.ClassDef):
                yield f"{module}.{name}", getattr(modules()[module], name), statement


def functions() -> Iterator[tuple[str, object, Function]]:
    """Return every function and method of the stubs: dotted name, real function, and its definition in the stub."""
    for module in STUBS.keys() & modules().keys():
        for name, statement in stub_of(module).items():
            if isinstance(statement, Function):
                yield f"{module}.{name}", getattr(modules()[module], name), statement
    for owner, cls, statement in classes():
        for name, method in defined_names(statement.body).items():
            if is_method(method):
                yield f"{owner}.{name}", getattr(cls, name), method


def is_method(statement: ast.stmt) -> bool:
    return isinstance(statement, Function) and not any(
        isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in statement.decorator_list
    )


def described_parameters(stub: Function) -> list[tuple[str, str]]:
    """Return (name, marked by its kind, and default) of each parameter, as a stub writes them."""
    arguments = stub.args
    positional = [f"{argument.arg}/" for argument in arguments.posonlyargs]
    positional += [argument.arg for argument in arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    described = [(name, written(default)) for name, default in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        described.append((f"*{arguments.vararg.arg}", ""))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        described.append((f"{argument.arg}=", written(default)))
    if arguments.kwarg:
        described.append((f"**{arguments.kwarg.arg}", ""))
    return described


def written(default: ast.expr | None) -> str:
    return "" if default is None else "..." if ast.unparse(default) == "..." else repr(ast.literal_eval(default))


def real_parameters(function: object) -> list[tuple[str, str]]:
    kinds = inspect.Parameter
    marks = {kinds.POSITIONAL_ONLY: "{}/", kinds.VAR_POSITIONAL: "*{}", kinds.KEYWORD_ONLY: "{}="}
    marks |= {kinds.POSITIONAL_OR_KEYWORD: "{}", kinds.VAR_KEYWORD: "**{}"}
    return [
        (
            marks[parameter.kind].format(name),
            "" if parameter.default is inspect.Parameter.empty else repr(parameter.default),
        )
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def test_the_stubs_are_what_the_code_says():
    pytest.importorskip("Cython", reason="Cython is not installed, whose parser reads the code")
    program = SOURCE.parent / "tools" / "stubs"
    check = subprocess.run([sys.executable, program, "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_compiled_module_with_public_names_has_a_stub() -> None:
    assert not [name for name, module in modules().items() if name not in STUBS and public_names_of(module)]


def test_a_stub_names_what_its_module_defines_and_nothing_else() -> None:
    for name in STUBS.keys() & modules().keys():
        module = modules()[name]
        assert public_names_of(module) <= set(stub_of(name)) <= set(vars(module)), name


def test_a_class_in_a_stub_has_the_members_of_the_real_one() -> None:
    for name, cls, statement in classes():
        stub = defined_names(statement.body)
        assert public_members(cls) <= set(stub), name
        if issubclass(cls, Exception):  # in Python: attributes are made in __init__, which the stub lacks
            stub = {member: node for member, node in stub.items() if isinstance(node, Function)}
        assert set(stub) <= set(dir(cls)), name


def test_a_function_in_a_stub_takes_what_the_real_one_takes() -> None:
    for name, real, stub in functions():
        assert_equal_parameters(name, described_parameters(stub), real)


def test_a_class_shows_the_signature_that_its_stub_has() -> None:
    for name, cls, statement in classes():
        made = [node for node in statement.body if isinstance(node, Function) and node.name == "__init__"]
        if made and not issubclass(cls, Exception):
            assert_equal_parameters(name, described_parameters(made[0])[1:], cls)


def assert_equal_parameters(name: str, promised: list[tuple[str, str]], real: object) -> None:
    taken = real_parameters(real)
    if isinstance(real, MethodDescriptorType) and not promised[0][0].endswith("/"):
        promised[0] = (promised[0][0] + "/", "")  # a plain method of a compiled class takes `self` only by position
    assert [parameter for parameter, _ in promised] == [parameter for parameter, _ in taken], name
    for (parameter, default), (_, real_default) in zip(promised, taken, strict=True):
        assert default == real_default or (default == "..." and real_default), f"{name}({parameter})"
