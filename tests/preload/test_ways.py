"""However a caller looks up one of the driver's functions, it gets ours; all other functions are passed through."""

import subprocess
from pathlib import Path

import pytest

from helpers.c_library import compiled
from helpers.preloaded import build_driver, output_of, run, run_beside

CALLER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
int cuMemAlloc_v2(uint64_t*, size_t);
int cuMemFree_v2(uint64_t);
#ifdef LINKED
int take(uint64_t* address, size_t size) { return cuMemAlloc_v2(address, size); }
#else
int take(uint64_t* address, size_t size) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
#ifdef VERSIONED
    int (*function)(uint64_t*, size_t) = dlvsym(driver, "cuMemAlloc_v2", "CUDA");
#else
    int (*function)(uint64_t*, size_t) = dlsym(driver, "cuMemAlloc_v2");
#endif
    return function ? function(address, size) : -1;
}
#endif
"""

PROC_ADDRESS = """
def function(name, version=12000, flags=1, form="cuGetProcAddress_v2"):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    result = getattr(cuda, form)(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags),
                                 *([ctypes.byref(status)] if form.endswith("v2") else []))
    return result, found.value

def real(name):
    return ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value
"""


@pytest.fixture
def caller(tmp_path: Path):
    """Build a library with its own name that requests memory."""

    def build(*options: str | Path) -> Path:
        (tmp_path / "caller.c").write_text(CALLER)
        return compiled(tmp_path / "libcaller.so", tmp_path / "caller.c", *options, "-ldl")

    return build


TAKE = """
own = ctypes.CDLL({library!r})
print(allocate(4 * MIB, "take", library=own) > 0, held(), preloaded().ways()["cuMemAlloc_v2"]["found_by"])
"""


def test_a_linked_function_is_ours(driver, tmp_path, caller):
    library = caller("-DLINKED", f"-L{driver}", "-l:libcuda.so.1")
    assert output_of(driver, tmp_path, TAKE.format(library=str(library))) == ["True {'libcaller.so': 4194304} {}"]


def test_a_function_found_by_dlsym_is_ours(driver, tmp_path, caller):
    said = output_of(driver, tmp_path, TAKE.format(library=str(caller())))
    assert said == ["True {'libcaller.so': 4194304} {'dlsym': 'libcaller.so'}"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [("cuda/lib64", "libother.so"), ("cupyish", "libother.so"), ("numbas", "libother.so"),
     ("cupy/_core", "cupy"), ("cupy_backends/cuda", "cupy"), ("cuda/bindings", "cuda-python")],
)  # fmt: skip
def test_a_library_has_the_name_of_its_package_and_otherwise_its_own(driver, tmp_path, caller, folder, name):
    (tmp_path / folder).mkdir(parents=True)
    library = caller().rename(tmp_path / folder / "libother.so")
    said = output_of(driver, tmp_path, TAKE.format(library=str(library)))
    assert said == [f"True {{'{name}': 4194304}} {{'dlsym': '{name}'}}"]


def test_a_function_found_by_dlvsym_is_ours(tmp_path, caller):
    (tmp_path / "versions").write_text("CUDA { global: *; };")
    driver = build_driver(tmp_path, f"-Wl,--version-script={tmp_path / 'versions'}")
    said = output_of(driver, tmp_path, TAKE.format(library=str(caller("-DVERSIONED"))))
    assert said == ["True {'libcaller.so': 4194304} {'dlvsym': 'libcaller.so'}"]


@pytest.mark.parametrize("form", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_a_function_found_by_proc_address_is_ours_in_every_version_of_it(driver, tmp_path, form):
    program = (
        PROC_ADDRESS
        + f"""
result, address = function("cuMemAlloc", form={form!r})
take = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t)(address)
given = ctypes.c_uint64()
print(result, take(ctypes.byref(given), 2 * MIB), held())
print(preloaded().ways()["cuMemAlloc_v2"]["found_by"])
"""
    )
    said = output_of(driver, tmp_path, program)
    assert said == ["0 0 {'ctypes': 2097152}", "{'cuGetProcAddress': 'ctypes'}"]


def test_proc_address_returns_itself_in_the_requested_form(driver, tmp_path):
    program = (
        PROC_ADDRESS
        + """
print(function("cuGetProcAddress")[1] == real("cuGetProcAddress_v2"))
"""
    )
    assert output_of(driver, tmp_path, program) == ["True"]


def test_a_function_for_streams_of_threads_is_its_own(driver, tmp_path):
    program = (
        PROC_ADDRESS
        + """
print(function("cuMemAllocAsync", flags=2)[1] == real("cuMemAllocAsync_ptsz"))
print(function("cuMemAllocAsync", flags=1)[1] == real("cuMemAllocAsync"))
address = allocate(MIB, "cuMemAllocAsync_ptsz", None)
print(address > 0, held(), free(address, "cuMemFreeAsync_ptsz", None), held())
"""
    )
    assert output_of(driver, tmp_path, program) == ["True", "True", "True {'ctypes': 1048576} 0 {}"]


def test_what_is_not_ours_and_what_the_driver_does_not_have_pass(driver, tmp_path):
    program = (
        PROC_ADDRESS
        + """
print(function("cuMemcpyAsync")[1] == real("cuMemcpyAsync"), "cuMemcpyAsync" in preloaded().ways())
print(function("cuNoSuchFunction"), function("cuMemAlloc", version=2000))
"""
    )
    assert output_of(driver, tmp_path, program) == ["True False", "(500, None) (500, None)"]


def test_the_drivers_internal_calls_are_not_counted(driver, tmp_path):
    # The driver of the tests asks its pool through the public name, which is ours.
    program = """
    address = allocate(MIB, "cuMemAllocAsync", None)
    print(held(), "cuMemAllocFromPoolAsync" in preloaded().ways())
    """
    assert output_of(driver, tmp_path, program) == ["{'ctypes': 1048576} False"]


NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
int who(void) { return NUMBER; }
int next(void) { int (*found)(void) = dlsym(RTLD_NEXT, "who"); return found ? found() : 0; }
"""


def test_the_next_library_is_still_the_one_after_the_caller(driver, tmp_path):
    (tmp_path / "next.c").write_text(NEXT)
    first, second = (compiled(tmp_path / f"lib{n}.so", f"-DNUMBER={n}", tmp_path / "next.c", "-ldl") for n in (1, 2))
    program = f"""
    first = ctypes.CDLL({str(first)!r}, mode=ctypes.RTLD_GLOBAL)
    second = ctypes.CDLL({str(second)!r}, mode=ctypes.RTLD_GLOBAL)
    print(first.who(), first.next(), second.next())
    """
    without = run(driver, "-c", "import ctypes\n" + "\n".join(line.strip() for line in program.splitlines()))
    assert output_of(driver, tmp_path, program) == without.stdout.splitlines()


def test_without_a_driver_nobody_finds_a_function_of_it(tmp_path):
    program = """
import ctypes, os
from allotment import preload
if preload.depth() is None:
    os.execve(os.sys.executable, [os.sys.executable, __file__], os.environ | preload.environment())
print(hasattr(ctypes.CDLL(None), "cuMemAlloc_v2"), hasattr(ctypes.CDLL(None), "allotment_preload_version"))
"""
    (tmp_path / "program.py").write_text(program)
    done = run(tmp_path, tmp_path / "program.py")
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_a_library_that_was_closed_leaves_no_name_behind_for_the_next(driver, tmp_path, caller):
    library = caller()
    program = f"""
    import _ctypes, shutil
    own = ctypes.CDLL({str(library)!r})
    own.take(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(MIB))
    _ctypes.dlclose(own._handle)
    shutil.copy({str(library)!r}, {str(tmp_path / "libother.so")!r})
    other = ctypes.CDLL({str(tmp_path / "libother.so")!r})
    other.take(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(MIB))
    print(sorted(held()))
    """
    assert output_of(driver, tmp_path, program) == ["['libcaller.so', 'libother.so']"]


def test_an_exported_name_given_to_proc_address_is_replaced_too(driver, tmp_path):
    program = (
        PROC_ADDRESS
        + """
print([function(name)[1] == real(name) for name in ("cuMemAlloc_v2", "cuMemFreeAsync_ptsz", "cuCtxCreate_v2")])
"""
    )
    assert output_of(driver, tmp_path, program) == ["[True, True, True]"]


def test_a_function_that_is_not_replaced_is_found_by_the_only_library_with_the_driver(driver, tmp_path):
    (tmp_path / "caller.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nint cuInit(unsigned);\nint begin(void) { return cuInit(0); }\n"
        'int found(void) { return dlsym(RTLD_DEFAULT, "cuCtxGetDevice") != 0; }\n'
    )
    library = compiled(tmp_path / "libcaller.so", tmp_path / "caller.c", f"-L{driver}", "-l:libcuda.so.1", "-ldl")
    program = f"import ctypes\nprint(ctypes.CDLL({str(library)!r}).found())\n"
    (tmp_path / "program.py").write_text(program)
    assert run(driver, "-c", program).stdout == "1\n"
    done = run(driver, "-m", "allotment.preload", tmp_path / "program.py")
    assert (done.stdout, done.stderr) == ("1\n", "")


CLOSES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

static void* allocates_through(const char* name) {
    void *driver = dlopen(name, RTLD_NOW), *context;
    uint64_t address;
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*retain)(void**, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*push)(void*) = dlsym(driver, "cuCtxPushCurrent_v2");
    int (*take)(uint64_t*, size_t) = dlsym(driver, "cuMemAlloc_v2");
    init(0); retain(&context, 0); push(context);
    printf("%d\\n", take(&address, 1 << 20));
    fflush(stdout);
    dlclose(driver);
    return init;
}

int main(void) {
    char* where = allocates_through("libcuda.so.1");
    /* If the driver is gone, something else takes its place. */
    mmap(where - (uintptr_t)where % 4096, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    allocates_through("libcuda.so.1");
    return 0;
}
"""


def test_a_driver_that_is_closed_and_opened_again_still_serves(driver, tmp_path):
    (tmp_path / "main.c").write_text(CLOSES)
    subprocess.run(["cc", "-o", tmp_path / "main", tmp_path / "main.c", "-ldl"], check=True)
    done = run(driver, "-m", "allotment.preload", tmp_path / "main")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n0\n", "")


FORKS = """
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "callers.c"

int main(void) {
    int status;
    options.stacks = 1;
    spin_lock(&naming);             /* as another thread may hold them */
    spin_lock(&stacking);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        _exit(caller_at(__builtin_return_address(0)).library < 0);
    }
    waitpid(child, &status, 0);
    printf("%d\\n", status);
    return 0;
}
"""


def test_a_fork_while_another_thread_names_a_caller_leaves_no_lock_in_the_child(tmp_path):
    done = run_beside("callers.c", tmp_path, FORKS)
    assert (done.stdout, done.stderr) == ("0\n", "")
