"""The compiled stand-in: made once for the PyTorch and the Allotment found here, and kept.

It is kept in the user's cache folder, or where that cannot be written in a folder of the user's own among temporary
files, under a name that says which versions it is for and what it was made of. Whoever compiles holds a lock on a file
beside it and writes to a file of its own, which becomes the library in one step: two processes that need it at once
compile it once, and one that is interrupted leaves nothing that another would take for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from allotment._rules import NEWEST, OLDEST
from allotment.errors import UnsupportedError

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]
SOURCES = (
    "stand_in.cc", "telling.hpp", "upcalls.hpp", "facts.hpp", "points.hpp", "contexts.hpp", "versions.hpp",
    "allotment_points.h",
)  # fmt: skip
OUR_CUDA_HEADERS = HERE / "cuda_headers"
PROVEN: tuple[str, ...] = ("2.11",)
"""Releases with which PyTorch's own tests of its allocator have passed in deep mode on a GPU: `auto` takes it there."""
COMPILERS = ("c++", "g++", "clang++")
_C_PLUS_PLUS_20_FROM = (2, 13)

Say = Callable[[str], None]


@dataclass(frozen=True)
class TorchFacts:
    """What the stand-in is compiled for."""

    version: str
    cuda: str | None
    folder: Path
    """Of the package: its headers and libraries are below it."""
    new_strings: bool = True
    """Which of the two forms of std::string its libraries are compiled with."""

    @property
    def release(self) -> tuple[int, int]:
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class CannotBuild(UnsupportedError):
    """There can be no stand-in here; the text says why, and what would help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, operation="install")


def refuse_unproven(torch: TorchFacts) -> None:
    """Raises CannotBuild for a PyTorch with which deep mode has not passed PyTorch's own tests on a GPU."""
    if ".".join(map(str, torch.release)) not in PROVEN:
        raise CannotBuild(
            f"deep mode has not passed PyTorch's own tests on a GPU with PyTorch {torch.version} yet;"
            " install(mode='deep') takes it all the same"
        )


def refuse_unknown(torch: TorchFacts) -> None:
    """Raises CannotBuild for a PyTorch that the stand-in was not written for."""

    def release(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split("."))

    if torch.cuda is None:
        raise CannotBuild(f"PyTorch {torch.version} was built without CUDA; install a build that has it")
    if torch.release < release(OLDEST):
        raise CannotBuild(f"PyTorch {torch.version} is older than {OLDEST}, the first that deep mode knows")
    if torch.release > release(NEWEST):
        raise CannotBuild(f"PyTorch {torch.version} is newer than {NEWEST}, the last that deep mode knows")


def library(torch: TorchFacts, say: Say | None = None) -> Path:
    """The compiled stand-in, made now if it is not there. Raises CannotBuild.

    `say` is told, a line at a time, that it takes a while; without it, that goes to standard error.
    """
    say = say or _say
    refuse_unknown(torch)
    name = f"stand_in-{torch.version}-{sys.modules[PACKAGE.name].__version__}-{_fingerprint(torch)}.so"
    problems = []
    for folder in folders():
        kept = folder / name
        if kept.exists() and _is_ours(kept):
            return kept
    for folder in folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder):
                problems.append(f"{folder} belongs to another user or others can write to it")
                continue
            return _make(torch, folder / name, say)
        except OSError as error:
            problems.append(str(error))
    raise CannotBuild(f"no folder can be written for the compiled library: {'; '.join(problems)}")


def folders() -> Iterator[Path]:
    """Where it may be kept, the best first."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "allotment"
    yield Path(tempfile.gettempdir()) / f"allotment-{os.getuid()}"


def _is_ours(path: Path) -> bool:
    """Whether nobody else could have put something there: it is loaded as code."""
    found = path.stat()
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _fingerprint(torch: TorchFacts) -> str:
    parts = [torch.version, str(torch.cuda), str(torch.folder), str(torch.new_strings), os.uname().machine]
    contents = [(HERE / source).read_bytes() for source in SOURCES]
    contents.append((PACKAGE / "include" / "allotment.h").read_bytes())
    return hashlib.sha256(b"\0".join([*(part.encode() for part in parts), *contents])).hexdigest()[:12]


def _make(torch: TorchFacts, library: Path, say: Say) -> Path:
    with _lock(library.with_suffix(".lock"), say):
        if library.exists():  # another process was quicker
            return library
        for left in library.parent.glob(f"{library.stem}.*.part"):  # of one that was killed
            left.unlink(missing_ok=True)
        part = library.with_suffix(f".{os.getpid()}.part")
        try:
            _compile(torch, part, say)
            os.replace(part, library)
        finally:
            part.unlink(missing_ok=True)
    return library


@contextlib.contextmanager
def _lock(path: Path, say: Say) -> Iterator[None]:
    """One process at a time; it ends with the process. Where files cannot be locked, several may compile."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is compiling the same; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def _compile(torch: TorchFacts, into: Path, say: Say) -> None:
    command = [*compiler(), *flags(torch), str(HERE / SOURCES[0]), "-o", str(into)]
    say(f"compiling for PyTorch {torch.version}, once: about 20 seconds ...")
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise CannotBuild(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0 or not into.exists():
        raise CannotBuild(f"the stand-in does not compile with {command[0]}: {_complaint(done.stderr)}")
    say(f"compiled in {time.monotonic() - began:.0f} s, kept in {into.parent}")


def _complaint(output: str) -> str:
    """What a compiler says first, of all that it says."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it says nothing"])[0][:300]


def compiler() -> list[str]:
    """The C++ compiler: $CXX, or the first that is found. Raises CannotBuild."""
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise CannotBuild(f"there is no C++ compiler {chosen[0]!r}, which CXX names")
        return chosen
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise CannotBuild(f"there is no C++ compiler ({', '.join(COMPILERS)}, or what CXX names); install g++")


def flags(torch: TorchFacts) -> list[str]:
    """Everything that the compiler is told but for the source and the result. Raises CannotBuild."""
    headers = torch.folder / "include"
    if not headers.is_dir():
        raise CannotBuild(f"PyTorch {torch.version} is installed without its headers ({headers})")
    standard = "c++20" if torch.release >= _C_PLUS_PLUS_20_FROM else "c++17"
    libraries = torch.folder / "lib"
    return [
        *(f"-std={standard} -O2 -fPIC -shared -fvisibility=hidden -x c++".split()),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_strings)}",
        f"-I{PACKAGE / 'include'}",
        *(f"-isystem{folder}" for folder in [headers, headers / "torch" / "csrc" / "api" / "include"]),
        *(f"-isystem{folder}" for folder in cuda_headers(torch)),
        # Needed by name, so that they are the ones that PyTorch has loaded; where they are not there, they are loaded.
        *([f"-L{libraries}", "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-ltorch_cpu"] if libraries.is_dir() else []),
    ]


def cuda_headers(torch: TorchFacts) -> list[Path]:
    """The folders of CUDA's headers, of the version that PyTorch was built with. Raises CannotBuild."""
    major = (torch.cuda or "").split(".")[0]
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1]]
    for home in [*homes, f"/usr/local/cuda-{torch.cuda}", "/usr/local/cuda"]:
        folder = Path(home or "/nowhere") / "include"
        if _cuda_major(folder) == major and (folder / "crt" / "host_defines.h").exists():
            return [folder]
    for folder in [torch.folder.parent / "nvidia" / name / "include" for name in (f"cu{major}", "cuda_runtime")]:
        if _cuda_major(folder) == major:  # came with PyTorch; a part of them is missing there
            return [OUR_CUDA_HEADERS, folder]
    raise CannotBuild(
        f"there are no headers of CUDA {torch.cuda}, which PyTorch {torch.version} is built with; install the CUDA"
        " toolkit, or the package nvidia-cuda-runtime, or name the toolkit's folder in CUDA_HOME"
    )


def _cuda_major(folder: Path) -> str | None:
    """The major version of the headers in a folder; None: there are none."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return str(int(found[1]) // 1000) if found else None


def _say(line: str) -> None:
    print(f"allotment: {line}", file=sys.stderr, flush=True)
