"""Reads a `.pyx` and its `.pxd` with Cython's own parser, and returns their interface for Python as data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from Cython.CodeWriter import ExpressionWriter
from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.Errors import CompilerCrash, init_thread
from Cython.Compiler.TreeFragment import StringParseContext, parse_from_strings
from model import SOURCE, Class, Function, Module, Variable

FLOATS = {"double", "float"}
PYTHON_TYPES = {"str", "bytes", "tuple", "list", "dict", "set", "frozenset", "bytearray"}
ARRAY_ITEMS = {f"{kind}{bits}_t": f"np.{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
ARRAY_ITEMS |= {"char": "np.uint8", "double": "np.float64", "float": "np.float32"}

SIGNATURE_END = "\n--\n\n"  # in a compiled class's docstring, where `inspect.signature` looks for it
SPECIAL = {  # special methods with a fixed form; others appear if they have annotations or a docstring
    "__bool__": "(self) -> bool",
    "__contains__": "(self, item: object) -> bool",
    "__eq__": "(self, other: object) -> bool",
    "__hash__": "(self) -> int",
    "__index__": "(self) -> int",
    "__int__": "(self) -> int",
    "__len__": "(self) -> int",
    "__getbuffer__": "(self, flags: int, /) -> memoryview",
    "__exit__": "(self, kind: type[BaseException] | None, error: BaseException | None, "
    "traceback: TracebackType | None) -> None",
}
RENAMED = {"__getbuffer__": "__buffer__", "__cinit__": "__init__"}
OMITTED = {"__dealloc__", "__del__", "__repr__", "__str__", "__reduce__", "__releasebuffer__"}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def parsed(path: Path) -> Any:
    context = StringParseContext(str(path), cpp=True)
    context.set_language_level(3)
    init_thread()
    options = {"level": "module_pxd"} if path.suffix == ".pxd" else {}
    return parse_from_strings(str(path), path.read_text(), context=context, **options)


def statements(body: Any) -> Iterator[Any]:
    """Yield the statements of a module or class, also conditional ones."""
    for statement in getattr(body, "stats", [body]):
        if isinstance(statement, Nodes.StatListNode):
            yield from statements(statement)
        elif isinstance(statement, Nodes.CompilerDirectivesNode):
            yield from statements(statement.body)
        elif statement is not None:
            yield statement


def written(expression: Any) -> str:
    """Return an expression as text; "..." if it is a C expression."""
    try:
        return ExpressionWriter().write(expression)
    except CompilerCrash:
        return "..."


def annotation_of(node: Any) -> str | None:
    """Return an annotation as it goes into the stub. A string annotation stands for its content."""
    if node is None:
        return None
    text = node.string.value if node.string is not None else written(node.expr)
    tree = ast.parse(text, mode="eval").body
    return (
        tree.value
        if isinstance(tree, ast.Constant) and isinstance(tree.value, str)
        else ast.unparse(tree).replace("'", '"')
    )


def default_of(node: Any) -> str:
    text = written(node)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return "..."
    return "..." if value is ... else repr(value).replace("'", '"')


def python_type(base: Any, pointer: bool, classes: dict[str, set[str]]) -> str:
    """Return the Python type for a C type."""
    if isinstance(base, Nodes.MemoryViewSliceTypeNode):
        element = getattr(base.base_type_node, "name", "")
        return f"NDArray[{ARRAY_ITEMS.get(element, 'np.void')}]"
    if isinstance(base, Nodes.CQualifierTypeNode):
        return python_type(base.base_type, pointer, classes)
    name = getattr(base, "name", None) or getattr(getattr(base, "base_type_node", None), "name", "object")
    if name == "bint":
        return "bool"
    if name == "object":
        return "Any"
    if pointer:
        return "bytes"
    if name in FLOATS and base.is_basic_c_type:
        return "float"
    if name in PYTHON_TYPES:
        return {"tuple": "tuple[Any, ...]", "list": "list[Any]", "dict": "dict[Any, Any]"}.get(name, name)
    return name if name in classes else "int"


class Reader:
    """Reads one module."""

    def __init__(self, path: Path, classes: dict[str, set[str]]) -> None:
        self.path = path
        self.classes = classes  # of the package: name -> modules
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        self.module = Module(name, path)
        self.makers: dict[str, str] = {}  # partial(Class, ...) under a name -> Class
        self.declared: dict[str, Any] = {}  # classes as the .pxd declares them
        header = path.with_suffix(".pxd")
        if header.exists():
            for statement in statements(parsed(header).body):
                self.read_import(statement)
                if isinstance(statement, Nodes.CClassDefNode):
                    self.declared[statement.class_name] = statement

    def read(self) -> Module:
        for statement in statements(parsed(self.path).body):
            self.read_import(statement)
            self.read_maker(statement)
            item = self.read_item(statement)
            if item is not None:
                self.module.items.append(item)
        return self.module

    def complain(self, node: Any, text: str) -> None:
        self.module.complain(node.pos[1], text)

    def read_import(self, node: Any) -> None:
        imports = self.module.imports
        if isinstance(node, Nodes.FromImportStatNode):
            module = str(node.module.module_name.value)
            imports.update({target.name: (module, str(name)) for name, target in node.items})
        elif isinstance(node, Nodes.FromCImportStatNode):
            for entry in node.imported_names:
                name, alias = entry[1], entry[2]
                if str(node.module_name) in self.classes.get(name, ()):
                    imports.setdefault(str(alias or name), (str(node.module_name), str(name)))
        elif isinstance(node, Nodes.SingleAssignmentNode) and isinstance(node.rhs, ExprNodes.ImportNode):
            imports[node.lhs.name] = (str(node.rhs.module_name.value), None)

    def read_item(self, node: Any) -> Function | Class | Variable | None:
        if isinstance(node, Nodes.DefNode) and is_public(node.name):
            return self.read_function(node)
        if isinstance(node, Nodes.CClassDefNode) and is_public(node.class_name):
            return self.read_compiled_class(node)
        if isinstance(node, Nodes.PyClassDefNode) and is_public(node.name):
            return self.read_class(node)
        return self.read_variable(node)

    def read_variable(self, node: Any, in_enum: bool = False) -> Variable | None:
        """`name: type = value` or `name: type`; in an enumeration also `name = value`."""
        target = getattr(node, "lhs", None) or getattr(node, "expr", None)
        if not isinstance(target, ExprNodes.NameNode) or not is_public(target.name):
            return None
        annotation = annotation_of(target.annotation)
        if annotation is None and not in_enum:
            return None
        return Variable(target.name, annotation)

    def read_class(self, node: Any) -> Class:
        """Read a Python class."""
        bases = [written(base) for base in getattr(node.bases, "args", [])]
        cls = Class(node.name, bases)
        in_enum = any(base.split(".")[-1] in ("IntEnum", "IntFlag", "Enum", "StrEnum") for base in bases)
        for statement in statements(node.body):
            if isinstance(statement, Nodes.DefNode):
                self.add_method(cls, statement)
            elif (variable := self.read_variable(statement, in_enum)) is not None:
                cls.members.append(variable)
        return cls

    def read_compiled_class(self, node: Any) -> Class | None:
        """Read a `cdef class`; None if it offers nothing to Python, not even a signature: it is visible by accident."""
        declared = self.declared.get(node.class_name)
        bases = node.bases if node.bases and node.bases.args else getattr(declared, "bases", None)
        cls = Class(node.class_name, [written(base) for base in getattr(bases, "args", [])])
        methods = [one for one in statements(node.body) if isinstance(one, Nodes.DefNode)]
        has_init = any(method.name == "__init__" for method in methods)
        properties = {one.name for one in methods}
        for body in (declared, node):
            for statement in statements(body.body) if body is not None else ():
                if isinstance(statement, Nodes.CVarDefNode) and statement.visibility in ("readonly", "public"):
                    cls.members += [one for one in self.read_attributes(statement) if one.name not in properties]
        for statement in statements(node.body):
            cls.members += self.read_made(statement)
        constructor = None
        for method in methods:
            if method.name == "__init__" or (method.name == "__cinit__" and not has_init):
                constructor = method
            if not (method.name == "__cinit__" and has_init):
                self.add_method(cls, method)
        if not any(is_public(member.name) for member in cls.members) and SIGNATURE_END not in (node.doc or ""):
            return None
        self.check_signature(node, constructor)
        return cls

    def read_made(self, node: Any) -> list[Variable]:
        """Read `name = maker(...)` in a compiled class, whose attributes have no annotations: its maker is the type."""
        if not isinstance(node, Nodes.SingleAssignmentNode) or not isinstance(node.lhs, ExprNodes.NameNode):
            return []
        maker = written(getattr(node.rhs, "function", None)) if hasattr(node.rhs, "function") else ""
        kind = self.makers.get(maker, maker)
        return (
            [Variable(node.lhs.name, kind, replaces=True)] if is_public(node.lhs.name) and kind in self.classes else []
        )

    def read_maker(self, node: Any) -> None:
        """Read `maker = partial(Class, ...)` at module level."""
        if isinstance(node, Nodes.SingleAssignmentNode) and hasattr(node.rhs, "function"):
            arguments = node.rhs.args if hasattr(node.rhs, "args") else getattr(node.rhs.positional_args, "args", [])
            if written(node.rhs.function) == "partial" and arguments:
                made_by = written(arguments[0])
                self.makers[node.lhs.name] = self.makers.get(made_by, made_by)

    def read_attributes(self, node: Any) -> Iterator[Function | Variable]:
        for declarator in node.declarators:
            pointer = isinstance(declarator, Nodes.CPtrDeclaratorNode)
            name = declarator.base.name if pointer else declarator.name
            if not is_public(name):
                continue
            kind = python_type(node.base_type, pointer, self.classes)
            if node.visibility == "public":
                yield Variable(name, kind)
            else:
                yield Function(name, ["self"], kind, ["property"])

    def add_method(self, cls: Class, node: Any) -> None:
        if is_public(node.name) or (not is_special(node.name) and node.return_type_annotation):
            cls.members.append(self.read_function(node, is_method=True))
        elif is_special(node.name) and node.name not in OMITTED:
            name = RENAMED.get(node.name, node.name)
            is_described = node.doc or node.return_type_annotation or name == "__init__"
            if node.name == "__cinit__" and node.star_arg:  # passes its arguments on to a subclass
                return
            if node.name in SPECIAL and not (node.return_type_annotation and node.name != "__exit__"):
                arguments, returns = SPECIAL[node.name].rsplit(" -> ", 1)
                cls.members.append(Function(name, split_parameters(arguments[1:-1]), returns))
            elif is_described:
                function = self.read_function(node, is_method=True)
                function.name = name
                cls.members.append(function)

    def read_function(self, node: Any, is_method: bool = False) -> Function:
        decorators = [written(one.decorator) for one in node.decorators or ()]
        decorators = [one for one in decorators if not one.startswith("cython.")]
        has_self = is_method and "staticmethod" not in decorators
        returns = annotation_of(node.return_type_annotation)
        if node.name in ("__init__", "__cinit__"):
            returns = "None"
        if returns is None:
            if not any(one.endswith(".setter") for one in decorators):
                self.complain(node, f"{node.name} does not say what it returns: def {node.name}(...) -> ...")
            returns = "None"
        return Function(node.name, self.parameters(node, has_self), returns, decorators)

    def parameters(self, node: Any, has_self: bool) -> list[str]:
        parts: list[str] = []
        star = "*" + self.parameter(node.star_arg, node) if node.star_arg else "*"
        for at, argument in enumerate(node.args):
            if argument.kw_only and star:
                parts.append(star)
                star = ""
            parts.append(self.parameter(argument, node, is_self=has_self and at == 0))
            if argument.pos_only and not (at + 1 < len(node.args) and node.args[at + 1].pos_only):
                parts.append("/")
        if node.star_arg and star:
            parts.append(star)
        if node.starstar_arg:
            parts.append("**" + self.parameter(node.starstar_arg, node))
        return parts

    def parameter(self, argument: Any, function: Any, is_self: bool = False) -> str:
        annotation = annotation_of(argument.annotation)
        if isinstance(argument, Nodes.PyArgDeclNode):  # *args, **kwargs
            return f"{argument.name}: {annotation or 'Any'}"
        declarator, pointer = argument.declarator, False
        if isinstance(declarator, Nodes.CPtrDeclaratorNode):
            declarator, pointer = declarator.base, True
        name = declarator.name
        if not name:  # without a type, the parser considers the name a type
            name, base_type = argument.base_type.name, None
        else:
            base_type = argument.base_type
        is_typed = annotation is None and (getattr(base_type, "name", None) or is_compound(base_type))
        if is_self:
            return name
        if annotation is None and is_typed:
            annotation = python_type(argument.base_type, pointer, self.classes)
        if annotation is None:
            self.complain(function, f"{function.name} does not say of what type `{name}` is")
            annotation = "Any"
        if argument.default is None:
            return f"{name}: {annotation}"
        default = default_of(argument.default)
        if default == "None" and is_typed:
            annotation += " | None"
        return f"{name}: {annotation} = {default}"

    def check_signature(self, node: Any, constructor: Any) -> None:
        """Check that the class's docstring shows its signature, or none if it cannot be called."""
        if node.doc is None:
            return
        shown = node.doc.split(SIGNATURE_END)[0] if SIGNATURE_END in node.doc else None
        if constructor is None or constructor.star_arg:
            return
        arguments = []
        for part in self.parameters(constructor, has_self=True)[1:]:
            name, _, default = part.partition(" = ")
            arguments.append(name.split(":")[0] + (f"={default}" if default else ""))
        wanted = f"{node.class_name}({', '.join(arguments)})"
        if shown is None or " ".join(shown.replace("'", '"').split()) != wanted:
            self.complain(node, f"the docstring of {node.class_name} should start with {wanted}\\n--\\n")


def is_compound(base_type: Any) -> bool:
    return base_type is not None and not isinstance(base_type, Nodes.CSimpleBaseTypeNode)


def split_parameters(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
