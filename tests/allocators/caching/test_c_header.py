"""The header for C: it is installed, agrees with the table, and its example works."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import allotment
from allotment import entry
from helpers.c_library import compiled

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "from_c.c"
HEADER = Path(entry.get_include()) / "allotment.h"
DECLARED = ROOT / "src" / "allotment" / "_allocators" / "caching" / "entry_points.pxd"

compiler = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(compiler is None, reason="there is no C compiler")


def test_the_header_has_the_functions_of_the_table_in_order():
    struct = (
        HEADER.read_text().split("typedef struct allotment_entry_points {")[1].split("} allotment_entry_points;")[0]
    )
    table = DECLARED.read_text().split("cdef struct EntryPoints:")[1].split("\n\n")[0]
    names = re.compile(r"\(\*(\w+)\)\(\s*void\* context")
    assert names.findall(struct) == names.findall(table)
    version = re.search(r"ENTRY_VERSION = (\d+)", DECLARED.read_text())
    assert f"#define ALLOTMENT_ENTRY_VERSION {version[1]}\n" in HEADER.read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("c") / "from_c.so"
    options = ["-pthread", "-Wall", "-Wextra", "-Werror", f"-I{entry.get_include()}"]
    return ctypes.CDLL(str(compiled(made, *options, EXAMPLE)))


@needs_compiler
@pytest.mark.threads
def test_the_example_runs_on_threads_that_know_nothing_of_python(library):
    allocator = allotment.Allocator("host")
    table = ctypes.c_void_p(entry.entry_points_address(allocator))
    text = ctypes.create_string_buffer(200)
    assert library.run_threads(table, text, len(text)) == 0, text.value
    assert text.value == b"done"
    stats = allocator.stats()
    assert stats["allocation.all.allocated"] == 4000 and stats["allocated_bytes.all.current"] == 0
    allocator.inspection.check_invariants()


@needs_compiler
def test_the_header_is_as_large_as_the_table_and_failures_have_words(library):
    allocator = allotment.Allocator("host", limit="32MiB")
    address = entry.entry_points_address(allocator)
    library.size_of_header.restype = library.ask_for_too_much.restype = ctypes.c_size_t
    assert ctypes.c_size_t.from_address(address).value == library.size_of_header()
    text = ctypes.create_string_buffer(200)
    size = ctypes.c_size_t(1 << 30)
    length = library.ask_for_too_much(ctypes.c_void_p(address), size, text, ctypes.c_size_t(len(text)))
    assert text.raw[:length].startswith(b"out of memory: tried to allocate 1073741824 bytes")


@needs_compiler
def test_another_version_is_seen(library):
    table = (ctypes.c_size_t * 64)(10_000, 99)
    text = ctypes.create_string_buffer(200)
    assert library.run_threads(table, text, len(text)) == 1
    assert text.value == b"another version of the entry points: 99"


@needs_compiler
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_header_compiles_by_itself_in_both_languages(tmp_path, language):
    source = tmp_path / f"alone.{'c' if language == 'c' else 'cpp'}"
    source.write_text(
        "#include <allotment.h>\nint has(void* t) { return allotment_has((allotment_entry_points*) t); }\n"
    )
    command = [compiler, "-x", language, "-fsyntax-only", "-Wall", "-Werror", f"-I{entry.get_include()}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if language == "c++" and "cc1plus" in done.stderr:
        pytest.skip("there is no C++ compiler")
    assert done.returncode == 0, done.stderr
