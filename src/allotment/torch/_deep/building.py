"""Finds the compiled torch allocator for the installed PyTorch; compiles it once if the package has none, and keeps it.

Wheels of Allotment contain it for PyTorch's own wheels of some releases (`tools/torch_releases/libraries.py`).

The library is in the user's cache folder, or, if that cannot be written, in a folder of the user below the one for
temporary files. Its name states the versions it is for and a hash of its sources. A process that compiles holds a lock
on a file beside it and writes to a separate file, which it renames at the end: two processes that need the library at
once compile it once, and an interrupted process leaves nothing that another would load.

The library runs as code of this user, so nobody else may supply it. Anybody can create the folder among temporary files
first. `Folder` therefore opens a folder once, checks what it opened, and reaches the files through that descriptor; the
library's file is opened once too, checked, and loaded from its descriptor. No link is followed on the way.
"""

from __future__ import annotations

import contextlib
import errno
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

from allotment._rules import OLDEST
from allotment.errors import UnsupportedError

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]
SOURCES = (
    "torch_allocator.cc", "observers.hpp", "upcalls.hpp", "conversions.hpp", "interface.hpp", "contexts.hpp",
    "versions.hpp", "framework_interface.h", "sleep_guard.hpp",
)  # fmt: skip
OUR_CUDA_HEADERS = HERE / "cuda_headers"
PACKAGED = HERE / "compiled"
PROVEN: tuple[str, ...] = ("2.11",)
"""Releases with which PyTorch's own tests of its allocator have passed in deep mode on a GPU. Others are checked."""
COMPILERS = ("c++", "g++", "clang++")
_C_PLUS_PLUS_20_FROM = (2, 13)

Say = Callable[[str], None]


@dataclass(frozen=True)
class TorchFacts:
    """The PyTorch that the torch allocator is compiled for."""

    version: str
    cuda: str | None
    folder: Path
    """The package's folder, with its headers and libraries."""
    new_strings: bool = True
    """Which of the two forms of std::string its libraries are compiled with."""
    git_version: str | None = None
    """The commit that it was built from: two builds of one version may differ."""
    hip: str | None = None
    """The version of ROCm that it is built for."""

    @property
    def release(self) -> tuple[int, int]:
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


class CannotBuild(UnsupportedError):
    """The torch allocator cannot be built here; the text says why, and what would help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, operation="install")


def is_proven(torch: TorchFacts) -> bool:
    """Whether PyTorch's own tests have passed in deep mode with this release."""
    return ".".join(map(str, torch.release)) in PROVEN


def refuse_unknown(torch: TorchFacts) -> None:
    """Raise CannotBuild if the torch allocator cannot be compiled for this PyTorch. Newer releases may work."""
    if torch.hip is not None:
        raise CannotBuild(f"PyTorch {torch.version} was built for ROCm; deep mode needs a build for CUDA")
    if torch.cuda is None:
        raise CannotBuild(f"PyTorch {torch.version} was built without CUDA; install a build that has it")
    if torch.release < tuple(int(part) for part in OLDEST.split(".")):
        raise CannotBuild(f"PyTorch {torch.version} is older than {OLDEST}, the first that deep mode knows")


@dataclass(frozen=True)
class Program:
    """What is compiled: its first file; the library depends on all of them."""

    name: str
    """The first part of the library's name."""
    purpose: str
    """What it is for, in messages."""
    files: tuple[Path, ...]


TORCH_ALLOCATOR = Program("torch_allocator", "deep mode", tuple(HERE / name for name in SOURCES))
TORCH_PINNED_ALLOCATOR = Program(
    "torch_pinned_allocator",
    "pinned memory",
    (
        HERE.parent / "_pinned" / "torch_pinned_allocator.cc",
        PACKAGE / "_allocators" / "pinned" / "pinned_points.h",
        HERE / "versions.hpp",
    ),
)


@dataclass(frozen=True)
class Library:
    """The compiled torch allocator, open."""

    path: Path
    """Its path, for messages only: loading by path could open another file."""
    descriptor: int
    """Stays open: debuggers and PyTorch's stack traces open the file again by `loadable`."""

    @property
    def loadable(self) -> str:
        """A path for dlopen that leads to the opened file. Raises OSError without /proc.

        It contains this process's number in /proc, so that a symbolizer in a child process can open it too.
        """
        return f"/proc/{os.readlink('/proc/self')}/fd/{self.descriptor}"


class Folder:
    """An open folder that only this user and root can write to."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Raises OSError if it cannot be opened, is a link, or is open to other users."""
        self.path = path
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _refuse_foreign(self.descriptor, path)
        except OSError:
            os.close(self.descriptor)
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)

    def library(self, name: str) -> Library | None:
        """Open the library of that name; None if no such file exists, or this user cannot trust or read it."""
        try:
            descriptor = self.open(name)
        except OSError:
            return None
        try:
            _refuse_foreign(descriptor, self.path / name)
        except OSError:
            os.close(descriptor)
            return None
        return Library(self.path / name, descriptor)

    def text(self, name: str) -> str | None:
        """Return the content of a file; None as for `library`."""
        kept = self.library(name)
        if kept is None:
            return None
        with open(kept.descriptor, encoding="utf-8", errors="replace") as file:
            return file.read()

    def keep(self, name: str, text: str) -> None:
        """Write a file atomically: other processes see all of it or nothing."""
        part = f"{name}.{os.getpid()}.part"
        try:
            with open(self.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(part, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        finally:
            self.remove(part)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)


def _refuse_foreign(descriptor: int, path: Path) -> None:
    """Raise PermissionError if a user other than this one and root owns the opened file, or can write to it."""
    status = os.fstat(descriptor)
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"other users can write to {path}")


def library(torch: TorchFacts, say: Say | None = None, program: Program = TORCH_ALLOCATOR) -> Library:
    """Return a compiled program, the torch allocator by default; compile it if no folder has it. Raises CannotBuild.

    `say` gets progress lines; by default they go to standard error.
    """
    say = say or say_on_standard_error
    refuse_unknown(torch)
    name = kept_name(torch, program)
    kept = kept_library(torch, program)
    if kept is not None:
        return kept
    problems = []
    for path in folders():
        try:
            with Folder(path, create=True) as folder:
                return _make(torch, program, folder, name, say)
        except OSError as error:
            problems.append(str(error))
    raise CannotBuild(f"no folder can be written for the compiled library: {'; '.join(problems)}")


def kept_library(torch: TorchFacts, program: Program = TORCH_ALLOCATOR) -> Library | None:
    """Open the library that was compiled for this build of PyTorch earlier; None if no folder has it."""
    for path in folders():
        with contextlib.suppress(OSError), Folder(path) as folder:  # who compiles it names the problems
            kept = folder.library(kept_name(torch, program))
            if kept is not None:
                return kept
    return None


def folders() -> Iterator[Path]:
    """The folders where the library may be, in order of preference."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "allotment"
    yield Path(tempfile.gettempdir()) / f"allotment-{os.geteuid()}"


def packaged_library(torch: TorchFacts, program: Program = TORCH_ALLOCATOR) -> Library | None:
    """Open the library that came with the package for this build of PyTorch; None if it has none."""
    try:
        path = PACKAGED / packaged_name(torch, program)
        return Library(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None


def kept_name(torch: TorchFacts, program: Program = TORCH_ALLOCATOR) -> str:
    version = sys.modules[PACKAGE.name].__version__
    return f"{program.name}-{torch.version}-{version}-{_fingerprint(torch, program, torch.folder)}.so"


def packaged_name(torch: TorchFacts, program: Program = TORCH_ALLOCATOR) -> str:
    return f"{program.name}-{torch.version}-{_fingerprint(torch, program)}.so"


def _fingerprint(torch: TorchFacts, program: Program, folder: Path | None = None) -> str:
    """`folder`: where PyTorch is installed, for a library that is compiled there; two builds may state the same."""
    facts = [torch.version, torch.cuda, torch.git_version, folder, torch.new_strings, os.uname().machine]
    contents = [source.read_bytes() for source in program.files]
    contents.append((PACKAGE / "include" / "allotment.h").read_bytes())
    return hashlib.sha256(b"\0".join([*(str(fact).encode() for fact in facts), *contents])).hexdigest()[:12]


def _make(torch: TorchFacts, program: Program, folder: Folder, name: str, say: Say) -> Library:
    stem = name.removesuffix(".so")
    with one_process_at_a_time(folder, f"{stem}.lock", say):
        kept = folder.library(name)
        if kept is not None:  # another process has compiled it meanwhile
            return kept
        for left in os.listdir(folder.descriptor):
            if left.startswith(f"{stem}.") and left.endswith(".part"):  # of a process that was killed
                folder.remove(left)
        part = f"{stem}.{os.getpid()}.part"
        try:
            _compile(torch, program, folder, part, say)
            made = Library(folder.path / name, folder.open(part))
            os.fchmod(made.descriptor, 0o700)  # under a lax umask others could write to it, and it would be refused
            os.replace(part, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
        finally:
            folder.remove(part)
        return made


@contextlib.contextmanager
def one_process_at_a_time(folder: Folder, name: str, say: Say, *, doing: str = "compiling it") -> Iterator[None]:
    """Hold a lock that ends with the process. Where files cannot be locked, several processes do the same work."""
    import fcntl

    descriptor = folder.open(name, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is {doing}; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def _compile(torch: TorchFacts, program: Program, folder: Folder, name: str, say: Say) -> None:
    command = [*command_for(torch, program), "-o", name]
    say(f"compiling for PyTorch {torch.version}, once: about 20 seconds ...")
    began = time.monotonic()
    where = f"/proc/self/fd/{folder.descriptor}"  # the checked folder, even if its name leads elsewhere by now
    try:
        environment = os.environ | {"LC_ALL": "C"}  # its messages are searched for English words
        done = subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise CannotBuild(f"the C++ compiler {command[0]} cannot be run: {error}") from error
    if any(os.strerror(number) in done.stderr for number in (errno.ENOSPC, errno.EDQUOT)):
        raise OSError(f"the disk of {folder.path} or of temporary files is full")  # another folder may be on another
    if done.returncode != 0 or name not in os.listdir(folder.descriptor):
        raise CannotBuild(
            f"the library for {program.purpose} does not compile with {command[0]}: {_complaint(done.stderr)}"
        )
    say(f"compiled in {time.monotonic() - began:.0f} s, kept in {folder.path}")


def _complaint(output: str) -> str:
    """Return the first error in a compiler's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[0][:300]


def compiler() -> list[str]:
    """The C++ compiler: $CXX, or the first that is found. Raises CannotBuild."""
    chosen = os.environ.get("CXX", "").split()
    if chosen:
        path = shutil.which(chosen[0])
        if path is None:
            raise CannotBuild(f"CXX names {chosen[0]!r}, which is not a C++ compiler on this machine")
        return [os.path.abspath(path), *chosen[1:]]  # it runs in another folder
    for name in COMPILERS:
        path = shutil.which(name)
        if path:
            return [os.path.abspath(path)]
    raise CannotBuild(f"no C++ compiler was found ({', '.join(COMPILERS)}, or what CXX names); install g++")


def command_for(torch: TorchFacts, program: Program) -> list[str]:
    """Return the compiler's command line for a program except for the result. Raises CannotBuild."""
    own = [f"-I{place}" for place in dict.fromkeys(file.parent for file in program.files)]
    return [*compiler(), *own, *flags(torch), str(program.files[0])]


def flags(torch: TorchFacts) -> list[str]:
    """Return the compiler's command line except for the source and the result. Raises CannotBuild."""
    headers = torch.folder / "include"
    if not headers.is_dir():
        raise CannotBuild(f"PyTorch {torch.version} is installed without its headers ({headers})")
    standard = "c++20" if torch.release >= _C_PLUS_PLUS_20_FROM else "c++17"
    libraries = torch.folder / "lib"
    return [
        *(f"-std={standard} -O2 -fPIC -shared -fvisibility=hidden -x c++".split()),
        "-DNDEBUG",  # as PyTorch itself: without it, some of its classes have more members
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_strings)}",
        f"-I{PACKAGE / 'include'}",
        *(f"-isystem{folder}" for folder in [headers, headers / "torch" / "csrc" / "api" / "include"]),
        *(f"-isystem{folder}" for folder in cuda_headers(torch)),
        # Linked by name, so that the loader uses those that PyTorch has loaded, and loads the others.
        *([f"-L{libraries}", "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-ltorch_cpu"] if libraries.is_dir() else []),
    ]


def cuda_headers(torch: TorchFacts) -> list[Path]:
    """The folders of CUDA's headers, of the version that PyTorch was built with. Raises CannotBuild."""
    major = (torch.cuda or "").split(".")[0]
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1]]
    for home in [*homes, f"/usr/local/cuda-{torch.cuda}", "/usr/local/cuda"]:
        folder = Path(home or "/nowhere").absolute() / "include"
        if _cuda_major(folder) == major and (folder / "crt" / "host_defines.h").exists():
            return [folder]
    for folder in [torch.folder.parent / "nvidia" / name / "include" for name in (f"cu{major}", "cuda_runtime")]:
        if _cuda_major(folder) == major:  # installed with PyTorch; some headers are missing there
            return [OUR_CUDA_HEADERS, folder]
    raise CannotBuild(
        f"the headers of CUDA {torch.cuda}, which PyTorch {torch.version} is built with, are missing; install the CUDA"
        " toolkit, or the package nvidia-cuda-runtime, or name the toolkit's folder in CUDA_HOME"
    )


def _cuda_major(folder: Path) -> str | None:
    """Return the major version of the headers in a folder; None without headers."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return str(int(version[1]) // 1000) if version else None


def say_on_standard_error(line: str) -> None:
    print(f"allotment: {line}", file=sys.stderr, flush=True)
