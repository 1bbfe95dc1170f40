"""Every .pyx below src/ is one extension; what is Linux alone is left out elsewhere.

Build switches, all through the environment:
    ALLOTMENT_TRACE=1       line tracing, for coverage; nothing is measured with such a build
    ALLOTMENT_QUICK=1       no optimization: for the loop of edit, compile, test; nothing is measured with it either
    ALLOTMENT_SANITIZE=...  a comma list for the compiler's -fsanitize (address,undefined or thread)
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = Path("src")
CPP_SOURCES = {SOURCE / "allotment" / "torch" / "_hooks.pyx"}
LINUX_ONLY = (
    "allotment._devices.cuda.",
    "allotment._devices.host.",
    "allotment._devices.shared.",
    "allotment.numpy.",
    "allotment.torch._deep.",
)
TRACED = os.environ.get("ALLOTMENT_TRACE") == "1"
QUICK = os.environ.get("ALLOTMENT_QUICK") == "1"
SANITIZERS = os.environ.get("ALLOTMENT_SANITIZE", "")
GENERATED_CODE = ["-Wno-unused-function", "-Wno-sign-compare"]  # Cython writes such things, and means them
JOBS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def compile_flags() -> list[str]:
    if sys.platform == "win32":
        return ["/O2"]
    if SANITIZERS:
        return ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", f"-fsanitize={SANITIZERS}", *GENERATED_CODE]
    if TRACED or QUICK:
        return ["-O0", "-g0", *GENERATED_CODE]
    # Without vectors: fields written one by one and read back in pairs cost more than they save on the hot path.
    return ["-O2", "-fno-tree-vectorize", "-g0", "-fno-semantic-interposition", *GENERATED_CODE]


def link_flags() -> list[str]:
    return [f"-fsanitize={SANITIZERS}"] if SANITIZERS and sys.platform != "win32" else []


def extensions() -> list[Extension]:
    found = []
    for path in sorted(SOURCE.rglob("*.pyx")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if name.startswith(LINUX_ONLY) and sys.platform != "linux":
            continue
        is_for_cpp = path in CPP_SOURCES
        found.append(
            Extension(
                name,
                [str(path)],
                language="c++" if is_for_cpp else None,
                optional=is_for_cpp,  # the other side of it is written in C++; everything else needs C alone
                extra_compile_args=compile_flags(),
                extra_link_args=link_flags(),
                define_macros=[("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")] if TRACED else [],
            )
        )
    return found


def has_old_c() -> bool:
    """Whether some C was written before this file, so perhaps with other directives, which Cython does not look at."""
    changed = Path(__file__).stat().st_mtime
    return any(
        path.with_suffix(".c").exists() and path.with_suffix(".c").stat().st_mtime < changed
        for path in SOURCE.rglob("*.pyx")
    )


setup(
    ext_modules=cythonize(
        extensions(),
        nthreads=JOBS if sys.platform == "linux" else 0,  # elsewhere its workers would each run this file
        force=TRACED or bool(SANITIZERS) or has_old_c(),
        show_all_warnings=False,
        compiler_directives={
            "language_level": "3",
            # C data is never checked, so these cost the hot path nothing. What a user passed in is a Python object.
            "boundscheck": True,
            "wraparound": False,
            "nonecheck": True,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",  # only where `inspect.signature` has no better source
            "annotation_typing": False,  # annotations are for the stubs; what is typed for speed says so in C
            "linetrace": TRACED,
        },
    ),
    options={"build_ext": {"parallel": JOBS}},
)
