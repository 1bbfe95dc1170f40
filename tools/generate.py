"""Writes into the sources everything that is generated from the contract's table of operations.

    python tools/generate.py            write
    python tools/generate.py --check    change nothing; exit 1 and name the files that would change

The table is src/allotment/_core/contract/operations.py. A file is written whole, or between two marked lines.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTRACT = ROOT / "src/allotment/_core/contract"
PYTHON_DEVICES = ROOT / "src/allotment/_devices/python"

sys.path.insert(0, str(CONTRACT))  # not through the package, which may not be compiled yet
from operations import GROUPS, OPERATIONS, ROLES, Capability, Operation, Share, Status, Value  # noqa: E402

WIDTH = 118
NOTICE = "written by `make generate` from _core/contract/operations.py"
LINES_OF_ENUM = re.compile(r"^    (\w+) = (\d+)(?:  # (.*))?$", re.MULTILINE)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="change nothing")
    is_check = arguments.parse_args().check
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: {'run `make generate`' if is_check else 'written'}")
        if not is_check:
            path.write_text(text)
    return 1 if is_check and stale else 0


def generated() -> dict[Path, str]:
    """Return the text that each file should have."""
    return {
        CONTRACT / "table.pxd": between_marks(CONTRACT / "table.pxd", "# --- {} ---", table()),
        PYTHON_DEVICES / "trampolines.pyx": trampolines(),
        PYTHON_DEVICES / "methods.py": methods(),
        ROOT / "docs/writing-a-backend.md": between_marks(ROOT / "docs/writing-a-backend.md", "<!-- {} -->", docs()),
    }


def between_marks(path: Path, mark: str, text: str) -> str:
    first, last = mark.format(NOTICE), mark.format("end of what is generated")
    before, _, rest = path.read_text().partition(f"{first}\n")
    _, found, after = rest.partition(last)
    if not found:
        raise SystemExit(f"{path} has no lines {first!r} and {last!r}")
    return f"{before}{first}\n{text}{last}{after}"


# The table in C.


def table() -> str:
    return "\n".join([
        "cdef enum:", *constants(Status), "",
        "cdef enum:                  # capabilities", *constants(Capability), "",
        "ctypedef enum share_t:      # how memory is shared with another process", *constants(Share), "",
        "cdef enum Operation:        # index of each operation in the table",
        *wrapped(", ".join([*(operation.name.upper() for operation in OPERATIONS), "OPERATION_COUNT"]), "    "), "",
        "cdef struct DeviceTable:",
        "    size_t size             # of this struct, as the device was compiled",
        "    uint32_t version",
        "    uint32_t capabilities",
        "    device_t device         # index shown in reports and snapshots",
        "    uint64_t serial         # no two devices of a process have the same one; `self` may get a reused address",
        "    void* self",
        "    # Under IS_UNCHECKED: whether stream_create returned this handle. It then stays valid, destroyed",
        "    # or not. Must not block. NULL: it keeps none.",
        "    bint (*keeps_stream)(void* self, stream_t stream) noexcept nogil",
        *fields(), "", "",
    ])  # fmt: skip


def constants(enumeration: type) -> Iterator[str]:
    for name, number, text in LINES_OF_ENUM.findall(inspect.getsource(enumeration)):
        line = f"    {c_constant(enumeration, name)} = {number}"
        yield f"{line:26}  # {text}" if text else line


def c_constant(enumeration: type, name: str) -> str:
    if enumeration is Capability:
        return f"IS_{name}" if name in ("HOST", "RECORDED", "UNCHECKED") else f"CAN_{name}"
    return f"SHARE_{name}" if enumeration is Share else name


def fields() -> Iterator[str]:
    for group in GROUPS:
        yield ""
        yield from wrapped(f"{group.title}. {group.contract}".strip(), "    # ")
        for operation in group.operations:
            yield from call_like(
                f"    {result_type(operation)} (*{operation.name})(", c_parameters(operation), ") noexcept nogil"
            )


def result_type(operation: Operation) -> str:
    return "size_t" if operation.name == "describe" else "status_t"


def c_parameters(operation: Operation) -> list[str]:
    if operation.name == "describe":
        return ["void* self", "char* text", "size_t capacity"]
    taken = [text for value in operation.parameters for text in c_parameter(value)]
    return ["void* self", *taken, *(text for value in operation.results for text in c_result(value))]


def c_parameter(value: Value) -> list[str]:
    if value.role == "data":
        return [f"const unsigned char* {value.name}", "size_t length"]
    return [f"{ROLES[value.role].c_type} {value.name}"]


def c_result(value: Value) -> list[str]:
    match value.role:
        case "ready":  # the status itself is the result
            return []
        case "data":
            return [f"unsigned char* {value.name}", "size_t capacity", "size_t* length"]
        case "nodes":
            return [f"node_t* {value.name}", "size_t capacity", "size_t* count"]
    return [f"{ROLES[value.role].c_type}* {value.name}"]


# The functions of a device written in Python.

TRAMPOLINES = """\
# {notice}: do not edit
\"\"\"The table of a device written in Python: each function takes the interpreter lock and calls a method.

Each is: out-parameter = checked(method(arguments)); an exception becomes a status.
\"\"\"

from libc.stddef cimport size_t

from allotment._core.contract.raising cimport forget_refusal
from allotment._core.contract.table cimport OK, DeviceTable, share_t, status_t
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, graph_t, node_t, stream_t)
from allotment._devices.python.results cimport (
    as_bytes, describe, failed, free_and_total, living, memory, number, numbers, put_data, put_nodes, readiness)

cdef DeviceTable TRAMPOLINES


cdef const DeviceTable* trampolines() noexcept:
    return &TRAMPOLINES
"""


def trampolines() -> str:
    lines = [TRAMPOLINES.format(notice=NOTICE)]
    for operation in OPERATIONS:
        if operation.is_special:
            continue
        lines += ["", *trampoline(operation), f"TRAMPOLINES.{operation.name} = call_{operation.name}", ""]
    return "\n".join([*lines, "", "TRAMPOLINES.describe = describe", ""])


def trampoline(operation: Operation) -> Iterator[str]:
    yield from call_like(f"cdef status_t call_{operation.name}(", c_parameters(operation), ") noexcept with gil:")
    yield "    try:"
    yield from (f"        {line}" for line in body(operation))
    yield "    except BaseException as error:"
    yield "        return failed(self, error)"
    yield ""


def body(operation: Operation) -> Iterator[str]:
    method = operation.python_name
    call = f"living(self).{method}({', '.join(map(as_object, operation.parameters))})"
    match operation.results:
        case (Value("ready", _),):
            yield f'return readiness({call}, "{method}")'
            return
        case (_, _, *_):
            names = [value.name for value in operation.results]
            yield f'result = {operation.reader or "numbers"}({call}, "{", ".join(names)}", "{method}")'
            yield f"{', '.join(f'{name}[0]' for name in names)} = result"
        case _:
            yield stored(operation, call, method)
    if operation.finds_memory:
        yield "forget_refusal(self)"
    yield "return OK"


def as_object(value: Value) -> str:
    return f"as_bytes({value.name}, length)" if value.role == "data" else value.name


def stored(operation: Operation, call: str, method: str) -> str:
    """Return the statement that stores a call's result where the caller wants it."""
    match operation.results:
        case ():
            return call
        case (Value("data", name),):
            return f'put_data({call}, {name}, capacity, length, "{method}")'
        case (Value("nodes", name),):
            return f'put_nodes({call}, {name}, capacity, count, "{method}")'
        case (Value("address", name),) if "size" in {value.name for value in operation.parameters}:
            return f'{name}[0] = memory({call}, size, "{method}")'
        case (value,):
            least = ", 0" if value.may_be_zero else ""
            return f'{value.name}[0] = number({call}, "{method}", "{ROLES[value.role].meaning}"{least})'
    raise SystemExit(f"there is no trampoline for the result of {operation.name}")


# The methods of the class that such a device derives from.

METHODS = """\
# {notice}: do not edit
\"\"\"The methods that a device written in Python may define; it lacks the operations that it does not define.\"\"\"

from __future__ import annotations

from collections.abc import Iterable

from allotment._core.contract.operations import Status
from allotment.errors import UnsupportedError


class Methods:
    __slots__ = ()
    name: str

    def _lacks(self, method: str) -> UnsupportedError:
        words = f"{{self.name}} does not define {{method}}"
        return UnsupportedError(words, operation=method, status=Status.UNSUPPORTED)
"""


def methods() -> str:
    lines = [METHODS.format(notice=NOTICE)]
    for group in GROUPS:
        own = [operation for operation in group.operations if not operation.is_special]
        if own:
            together = " (all or none)" if len(own) > 1 and not group.is_required else ""
            lines += [*wrapped(f"{group.title}{together}.", "    # "), ""]
        for operation in own:
            lines += [*method(operation), ""]
    return "\n".join(lines)


def method(operation: Operation) -> Iterator[str]:
    parameters = ["self", *(f"{value.name}: {ROLES[value.role].python}" for value in operation.parameters)]
    result = python_result(operation)
    line = f"    def {operation.python_name}({', '.join(parameters)}) -> {result}:"
    if len(line) <= 120:
        yield line
    else:
        yield from (f"    def {operation.python_name}(", f"        {', '.join(parameters)}", f"    ) -> {result}:")
    lines = [line for text in operation.doc.split("\n") for line in wrapped(text, "        ") or [""]]
    lines[0] = f'        """{lines[0].strip()}'
    if len(lines) == 1:
        yield f'{lines[0]}"""'
    else:
        yield from (*lines, '        """')
    yield f'        raise self._lacks("{operation.python_name}")'


def python_result(operation: Operation) -> str:
    types = [ROLES[value.role].python for value in operation.results]
    return "None" if not types else types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


# The table in the docs, for authors of devices.


def docs() -> str:
    lines = ["", "| Methods | What the allocator does with them | Without them |", "|---|---|---|"]
    for group in GROUPS:
        names = ", ".join(f"`{operation.python_name}`" for operation in group.operations if not operation.is_special)
        if names:
            lines.append(f"| {names} | {group.does} | {group.without} |")
    return "\n".join([*lines, "", ""])


# Text.


def wrapped(text: str, start: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start)


def call_like(start: str, items: list[str], end: str) -> list[str]:
    """Join `start`, the items and `end`; items that do not fit go below the first one."""
    glued = [text.replace(" ", "\0") for text in (start, *items, end)]
    text = glued[0] + ", ".join(glued[1:-1]) + glued[-1]
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=" " * len(start), break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


if __name__ == "__main__":
    sys.exit(main())
