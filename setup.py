"""The compiled modules: each .pyx file below src/ is one, and each layer's modules are linked into one library.

Build switches, all through the environment:
    ALLOTMENT_TRACE=1       line tracing, for coverage; nothing is measured with such a build
    ALLOTMENT_QUICK=1       no optimization: for the loop of edit, compile, test; nothing is measured with it either
    ALLOTMENT_SANITIZE=...  a comma list for the compiler's -fsanitize (address,undefined or thread)

A traced or sanitized build has one library for each module, which debuggers and reports name.
"""

import os
import runpy
import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = Path("src")
sys.path.insert(0, str(ROOT / "tools"))

from building.libraries import BuildLibraries, Library, PlainLibrary, modules_below
from building.translate import Module

# Read as a file: importing the package would need the modules that this builds.
library_of = runpy.run_path(str(SOURCE / "allotment" / "_libraries" / "__init__.py"))["library_of"]
SHARED = Module(None, "allotment._libraries.cython_utility", SOURCE / "allotment" / "_libraries" / "cython_utility.c")
CPP_SOURCES = {SOURCE / "allotment" / "torch" / "_hooks.pyx"}
LINUX_ONLY = (
    "allotment._devices.cuda.",
    "allotment._devices.host.",
    "allotment._devices.shared.",
    "allotment.numpy.",
    "allotment.torch._deep.",
)
# Code that runs once or in calls that wait for a device or the disk: it is compiled to be small.
OFF_THE_HOT_PATH = (
    "allotment._core.contract.raising",
    "allotment._core.edge.",
    "allotment._core.mechanism.invariant_failure",
    "allotment._core.placement.dense.arena_check",
    "allotment._core.placement.pytorch.check",
    "allotment._core.placement.registry",
    "allotment._allocators.caching.annotations",
    "allotment._allocators.caching.c_steps",
    "allotment._allocators.caching.contents",
    "allotment._allocators.caching.engine_settings",
    "allotment._allocators.caching.file_copy",
    "allotment._allocators.caching.history",
    "allotment._allocators.caching.host_copy",
    "allotment._allocators.caching.inspection",
    "allotment._allocators.caching.limits",
    "allotment._allocators.caching.planning",
    "allotment._allocators.caching.pool",
    "allotment._allocators.caching.sharing",
    "allotment._allocators.caching.sleep",
    "allotment._allocators.make",
    "allotment._allocators.parts",
    "allotment._allocators.pluggable.ledger_snapshot",
    "allotment._allocators.upcalls",
    "allotment._devices.cuda.device",
    "allotment._devices.cuda.trial",
    "allotment._devices.host.device",
    "allotment._devices.python.",
    "allotment._devices.simulated.",
    "allotment._sharing.",
    "allotment.torch._deep.bound_devices",
    "allotment.torch._deep.control",
    "allotment.torch._deep.snapshots",
    "allotment.torch._deep.statistics",
)
TRACED = os.environ.get("ALLOTMENT_TRACE") == "1"
QUICK = os.environ.get("ALLOTMENT_QUICK") == "1"
SANITIZERS = os.environ.get("ALLOTMENT_SANITIZE", "")
GENERATED_CODE = ["-Wno-unused-function", "-Wno-sign-compare"]  # Cython generates such code on purpose


def compile_flags(module: str) -> list[str]:
    if sys.platform == "win32":
        return ["/O2"]
    if SANITIZERS:
        return ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", f"-fsanitize={SANITIZERS}", *GENERATED_CODE]
    if TRACED or QUICK:
        return ["-O0", "-g0", *GENERATED_CODE]
    level = "-Os" if module.startswith(OFF_THE_HOT_PATH) else "-O2"
    # Without vectors: fields written one by one and read back in pairs cost more than they save on the hot path.
    return [level, "-fno-tree-vectorize", "-g0", "-fno-semantic-interposition", "-w"]  # warnings are for developers


def link_flags() -> list[str]:
    if sys.platform != "linux":
        return []
    return [f"-fsanitize={SANITIZERS}"] if SANITIZERS else ["-Wl,--strip-all"]


def name_of_library(module: Module) -> str:
    library = library_of(module.name)
    return module.name if TRACED or SANITIZERS or library is None else f"allotment._libraries.{library}"


def libraries() -> list[Library]:
    found = {SHARED.name: [SHARED]}
    for module in modules_below(SOURCE, CPP_SOURCES):
        if sys.platform == "linux" or not module.name.startswith(LINUX_ONLY):
            found.setdefault(name_of_library(module), []).append(module)
    return [
        Library(
            name,
            modules,
            flags={module.name: compile_flags(module.name) for module in modules},
            language="c++" if modules[0].source in CPP_SOURCES else None,
            optional=modules[0].source in CPP_SOURCES,  # its other side is written in C++; the rest needs only C
            extra_link_args=link_flags(),
            define_macros=[("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")] if TRACED else [],
        )
        for name, modules in found.items()
    ]


class Build(BuildLibraries):
    source = SOURCE
    shared = SHARED
    # Loaded before all others, into programs of any kind: without sanitizers, and with the same code in every build.
    plain = (
        [
            PlainLibrary(
                SOURCE / "allotment" / "preload" / "liballotment_preload.so",
                sorted((SOURCE / "allotment" / "preload" / "library").glob("*.c")),
                ["-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-sanitize=all"],
                ["-Wl,-Bsymbolic-functions", "-Wl,--strip-all", "-lpthread", "-ldl"],
            )
        ]
        if sys.platform == "linux"
        else []
    )
    force_translation = TRACED or bool(SANITIZERS)
    newest = max(path.stat().st_mtime for path in [Path(__file__), *(ROOT / "tools" / "building").glob("*.py")])
    directives = {
        "language_level": "3",
        # C data is never checked, so these cost the hot path nothing. What a user passed in is a Python object.
        "boundscheck": True,
        "wraparound": False,
        "nonecheck": True,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
        "embedsignature.format": "clinic",  # only where `inspect.signature` has no better source
        "freethreading_compatible": True,  # docs/threads.md says which lock guards which data
        "annotation_typing": False,  # annotations are only for the stubs; code that is typed for speed uses C types
        "emit_code_comments": False,  # nobody reads the C, but the compiler has to
        "auto_pickle": False,  # what may be pickled says so with `__reduce__`
        "linetrace": TRACED,
    }


setup(ext_modules=libraries(), cmdclass={"build_ext": Build})
