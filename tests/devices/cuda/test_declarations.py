"""Our declarations of the CUDA driver equal those in cuda.h: where a toolkit is installed, a compiler compares them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CUDA = Path(__file__).parents[3] / "src" / "allotment" / "_devices" / "cuda"
PLACES = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"]

NO_COUNTERPART = {"CUmemAllocationFlags"}  # cuda.h does not name this struct; its fields are compared in place


@pytest.fixture(scope="module")
def declarations() -> str:
    text = (CUDA / "driver.pxd").read_text()
    return re.sub(r"#.*", "", text)


@pytest.fixture(scope="module")
def include() -> Path:
    for place in PLACES:
        if place and (Path(place) / "include" / "cuda.h").is_file():
            return Path(place) / "include"
    pytest.skip("no cuda.h on this machine")


def compile_with_header(include: Path, source: str) -> str:
    """The compiler's errors in `source`, which follows cuda.h with old and new functions declared."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler on this machine")
    opening = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n"
    done = subprocess.run(
        [compiler, "-x", "c", "-std=gnu11", "-fsyntax-only", "-Werror=incompatible-pointer-types", f"-I{include}", "-"],
        input=opening + source,
        capture_output=True,
        text=True,
    )
    return done.stderr


def structs_in(declarations: str) -> dict[str, list[tuple[str, str]]]:
    """Fields of each plain struct as (C type, name with any array suffix)."""
    found = re.findall(r"^cdef struct (CU\w+):\s*\n((?:    .*\n)+)", declarations, re.MULTILINE)
    return {name: [tuple(line.strip().rsplit(maxsplit=1)) for line in body.splitlines()] for name, body in found}


def functions_in(declarations: str) -> list[tuple[str, str]]:
    """(name, arguments) of each function pointer of the driver."""
    body = declarations.split("cdef struct Driver:")[1]
    return re.findall(r"CUresult \(\*(cu\w+)\)\(([^)]*)\) noexcept nogil", body)


def test_every_function_has_the_signature_of_the_header(declarations, include):
    functions = functions_in(declarations)
    fields = "".join(f"CUresult (*{name})({arguments or 'void'});\n" for name, arguments in functions)
    values = "".join(f".{name} = {name},\n" for name, _ in functions)

    source = f"struct Driver {{\n{fields}}};\nstruct Driver driver = {{\n{values}}};\n"

    assert len(functions) > 60
    assert compile_with_header(include, source) == ""


def test_every_struct_is_laid_out_as_in_the_header(declarations, include):
    structs = structs_in(declarations)
    source = ""
    for name, fields in structs.items():
        ours = "".join(f"{'our_' + kind if kind in structs else kind} {field};\n" for kind, field in fields)
        source += f"typedef struct {{\n{ours}}} our_{name};\n"
        if name in NO_COUNTERPART:
            continue
        source += f'_Static_assert(sizeof({name}) == sizeof(our_{name}), "size of {name}");\n'
        for _, field in fields:
            plain = field.split("[")[0]
            source += f'_Static_assert(offsetof({name}, {plain}) == offsetof(our_{name}, {plain}), "{name}.{plain}");\n'
    for _, field in structs["CUmemAllocationFlags"]:
        place = "allocFlags." + field.split("[")[0]
        source += (
            f"_Static_assert(offsetof(CUmemAllocationProp, {place}) == offsetof(our_CUmemAllocationProp, {place}), "
            f'"{place}");\n'
        )

    assert source.count("_Static_assert") > 25
    assert compile_with_header(include, source) == ""


def test_every_type_has_the_size_of_the_header(declarations, include):
    types = re.findall(r"^ctypedef (.+) (\w+)$", declarations, re.MULTILINE)

    source = "".join(f'_Static_assert(sizeof({name}) == sizeof({kind}), "{name}");\n' for kind, name in types)

    assert len(types) > 15
    assert compile_with_header(include, source) == ""


def test_every_constant_has_the_value_of_the_header(declarations, include):
    constants = re.findall(r"^    (CU\w+) = (\d+)\s*$", declarations, re.MULTILINE)

    source = "".join(f'_Static_assert((unsigned long) {name} == {value}, "{name}");\n' for name, value in constants)

    assert len(constants) > 30
    assert compile_with_header(include, source) == ""


def test_the_list_of_functions_follows_the_table(declarations):
    cuda_driver = pytest.importorskip("allotment._devices.cuda.driver", reason="built only on Linux")

    assert list(cuda_driver.FUNCTIONS) == [name for name, _ in functions_in(declarations)]
