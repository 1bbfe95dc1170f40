"""A stub is a promise about a compiled module: what it names is there, and what is there it names.

Stubs are made from the code (tools/stubs). That they are up to date is one test; that the code, once compiled, is as
they say is the rest.
"""

import ast
import importlib
import inspect
import subprocess
import sys
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


def imported(name: str) -> ModuleType:
    """A compiled module; on Linux all are built, except what needs a C++ compiler."""
    if name.startswith(("allotment.torch.", "allotment.cupy.")):
        try:
            return import_bare(name)
        except ImportError as error:
            pytest.skip(f"built without a C++ compiler: {error}")
    if sys.platform == "linux":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is built only on Linux", exc_type=ModuleNotFoundError)


def is_public(name: str) -> bool:
    return not name.startswith("_")


def public_names_of(module: ModuleType) -> set[str]:
    """The functions and classes that a module defines for Python.

    A class with nothing public in it is a record of the compiled code; Python sees its type by accident.
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
    """What a stub's module or class defines; a property's setter counts with the property."""
    names: dict[str, ast.stmt] = {}
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.setdefault(name, statement)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.setdefault(name, statement)
    return {name: statement for name, statement in names.items() if is_public(name)}


def stub_of(name: str) -> dict[str, ast.stmt]:
    return defined_names(ast.parse(STUBS[name].read_text()).body)


def classes() -> list[tuple[str, str]]:
    return [
        (module, name)
        for module in STUBS
        for name, statement in stub_of(module).items()
        if isinstance(statement, ast.ClassDef)
    ]


def has_constructor(one: tuple[str, str]) -> bool:
    module, name = one
    return any(isinstance(method, Function) and method.name == "__init__" for method in stub_of(module)[name].body)


def functions() -> list[tuple[str, str]]:
    """Every function and method of the stubs, by module and dotted name."""
    found = []
    for module in STUBS:
        for name, statement in stub_of(module).items():
            if isinstance(statement, Function):
                found.append((module, name))
            elif isinstance(statement, ast.ClassDef):
                methods = defined_names(statement.body)
                found += [(module, f"{name}.{method}") for method, node in methods.items() if is_method(node)]
    return found


def is_method(statement: ast.stmt) -> bool:
    return isinstance(statement, Function) and not any(
        isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in statement.decorator_list
    )


def described_parameters(stub: Function) -> list[tuple[str, str]]:
    """(name, marked by its kind, and default) of each parameter, as a stub writes them."""
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


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_module_with_public_names_has_a_stub(name: str) -> None:
    assert name in STUBS or not public_names_of(imported(name))


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_names_everything_that_its_module_defines(name: str) -> None:
    assert public_names_of(imported(name)) <= set(stub_of(name))


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_names_nothing_that_its_module_lacks(name: str) -> None:
    assert set(stub_of(name)) <= set(vars(imported(name)))


@pytest.mark.parametrize(("module", "name"), classes())
def test_a_class_in_a_stub_has_the_members_of_the_real_one(module: str, name: str) -> None:
    cls = getattr(imported(module), name)
    stub = defined_names(stub_of(module)[name].body)
    assert public_members(cls) <= set(stub)
    if issubclass(cls, Exception):  # written in Python: its attributes are made in __init__, out of sight here
        stub = {member: statement for member, statement in stub.items() if isinstance(statement, Function)}
    assert set(stub) <= set(dir(cls))


@pytest.mark.parametrize(("module", "name"), functions())
def test_a_function_in_a_stub_takes_what_the_real_one_takes(module: str, name: str) -> None:
    real = imported(module)
    body = list(stub_of(module).values())
    for part in name.split("."):
        stub = defined_names(body)[part]
        body = getattr(stub, "body", [])
        real = getattr(real, part)
    assert isinstance(stub, Function)
    promised, taken = described_parameters(stub), real_parameters(real)
    assert_equal_parameters(promised, taken, real)


def assert_equal_parameters(promised, taken, real):
    if isinstance(real, MethodDescriptorType) and not promised[0][0].endswith("/"):
        promised[0] = (promised[0][0] + "/", "")  # a plain method of a compiled class takes `self` by position alone
    assert [name for name, _ in promised] == [name for name, _ in taken]
    for (name, default), (_, real_default) in zip(promised, taken, strict=True):
        assert default == real_default or (default == "..." and real_default), name


@pytest.mark.parametrize(("module", "name"), [one for one in classes() if has_constructor(one)])
def test_a_class_shows_the_signature_that_its_stub_has(module: str, name: str) -> None:
    real = getattr(imported(module), name)
    if inspect.isclass(real) and not issubclass(real, Exception):
        stub = next(one for one in stub_of(module)[name].body if isinstance(one, Function) and one.name == "__init__")
        assert_equal_parameters(described_parameters(stub)[1:], real_parameters(real), real)
