"""Translates Cython sources to C, parsing each .pxd file once for all modules that cimport it.

Cython parses every .pxd file that a module cimports, and does so again for the next module. Here that takes four times
as long as the modules themselves. A compiler that has parsed some .pxd files cannot be used for two modules (compiling
one changes what it knows about them), but a fork of it can be used for one:

    parse model.pxd ──┬─ parse engine.pxd ──┬─ compile allocator.pyx
                      │                     └─ compile buffer.pyx
                      └─ compile streams.pyx

A process parses only what all modules below it cimport, so each module is compiled with exactly what it cimports.

Cython's own functions (of functions, memory views, keyword arguments, ...) are translated once, into a module that all
others import them from: copies in 160 modules were nearly a quarter of all compiled code.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from Cython import __version__ as cython_version
from Cython.Build.SharedModule import generate_shared_module
from Cython.Compiler.Errors import init_thread
from Cython.Compiler.Main import CompilationOptions, Context, compile_single

# Cython's own dependency scanner takes longer than the translation.
CIMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) cimport (\([^)]*\)|.*)|cimport (.*))", re.MULTILINE)
DOTTED, WORD = re.compile(r"[\w.]+"), re.compile(r"\w+")


class TranslationError(Exception):
    """Cython rejected a module and has printed why."""


@dataclass(frozen=True)
class Module:
    """A .pyx file (None for Cython's own functions), its module name, and its C file."""

    source: Path | None
    name: str
    c_file: Path


class Translator:
    """Translates modules that are out of date.

    `shared` is the module of Cython's own functions, `directives` are the compiler's, and `jobs` is the number of
    processes.
    """

    def __init__(self, root: Path, shared: Module, directives: dict[str, Any], jobs: int) -> None:
        self.root = root
        self.shared = shared
        self.jobs = jobs
        self._direct: dict[str, frozenset[str]] = {}
        self._cimports: dict[str, frozenset[str]] = {}
        self.options = CompilationOptions(
            compiler_directives=directives,
            include_path=[str(root)],
            language_level=3,
            show_version=0,
            shared_utility_qualified_name=shared.name,
        )

    def translate(self, modules: Sequence[Module], *, force: bool, newest: float) -> None:
        """Translate each module that is older than a file it depends on, or than `newest`. Raises TranslationError."""
        whole = force or self.is_shared_stale(newest)
        stale = [module for module in modules if whole or self.is_stale(module, newest)]
        if not stale:
            return
        print(f"Cython {cython_version}: translating {len(stale)} modules", flush=True)
        working = get_context("fork").Semaphore(self.jobs)
        init_thread()
        branch = _Branch(self, Context.from_options(self.options), frozenset(), working)
        if whole and branch.fork():
            branch.compile_shared()
        if not branch.grow(stale):
            raise TranslationError("Cython could not translate all modules; see the reasons above")
        if whole:
            self.new_shared.replace(self.shared.c_file)  # only now: if this stops before, the next build translates all

    @property
    def new_shared(self) -> Path:
        return self.shared.c_file.with_suffix(".new.c")

    def is_shared_stale(self, newest: float) -> bool:
        """Whether Cython's own functions are older than `newest`, or of another version than modules will be."""
        file = self.shared.c_file
        if not file.exists() or file.stat().st_mtime < newest:
            return True
        with file.open() as text:
            return f" {cython_version} " not in text.readline()

    def is_stale(self, module: Module, newest: float) -> bool:
        if not module.c_file.exists():
            return True
        files = [module.source, *map(Path, self.cimports(str(module.source)))]
        return module.c_file.stat().st_mtime < max(newest, *(path.stat().st_mtime for path in files))

    def cimports(self, path: str) -> frozenset[str]:
        """Return the .pxd files of this package that a file depends on, also indirectly; a .pxd includes itself."""
        if path not in self._cimports:
            found, waiting = set[str](), {path, str(Path(path).with_suffix(".pxd"))}
            while waiting:
                file = waiting.pop()
                if file.endswith(".pxd") and Path(file).exists():
                    found.add(file)
                waiting |= self.direct_cimports(file) - found
            self._cimports[path] = frozenset(found)
        return self._cimports[path]

    def direct_cimports(self, path: str) -> frozenset[str]:
        if path not in self._direct:
            text = Path(path).read_text() if Path(path).exists() else ""
            names: set[str] = set()
            for origin, members, whole in CIMPORT.findall(text):
                names |= {origin, *(f"{origin}.{name}" for name in WORD.findall(members)), *DOTTED.findall(whole)}
            files = (self.root.joinpath(*name.split(".")).with_suffix(".pxd") for name in names if name)
            self._direct[path] = frozenset(str(file) for file in files if file.exists())
        return self._direct[path]

    def module_of(self, pxd: str) -> str:
        return ".".join(Path(pxd).relative_to(self.root).with_suffix("").parts)


class _Branch:
    """A process of the tree, with the .pxd files that its compiler has parsed."""

    def __init__(self, translator: Translator, context: Any, parsed: frozenset[str], working: Semaphore) -> None:
        self.translator = translator
        self.context = context
        self.parsed = parsed
        self.working = working
        self.children: list[int] = []

    def grow(self, modules: Sequence[Module]) -> bool:
        """Compile the modules, each in its own process. Return whether all of them succeeded."""
        rest = list(modules)
        while (pxd := self.most_shared(rest)) is not None:
            taken = [module for module in rest if self.may_parse(pxd, module)]
            rest = [module for module in rest if module not in taken]
            if self.fork():
                self.parse_and_grow(pxd, taken)
        for module in rest:
            if self.fork():
                self.compile(module)
        return all([os.waitpid(child, 0)[1] == 0 for child in self.children])

    def fork(self) -> bool:
        """Fork; return whether this is the child."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            gc.disable()  # it lives for seconds, and a collection would copy what it shares with its parent
            self.children = []
            return True
        self.children.append(child)
        return False

    def most_shared(self, modules: Sequence[Module]) -> str | None:
        """Return the .pxd file that saves most if it is parsed once for all modules that need it."""
        needed: Counter[str] = Counter()
        for module in modules:
            for pxd in self.translator.cimports(str(module.source)) - self.parsed:
                if not pxd.endswith("__init__.pxd") and self.may_parse(pxd, module):
                    needed[pxd] += 1
        gains = {
            pxd: (times - 1) * len(self.translator.cimports(pxd) - self.parsed)
            for pxd, times in needed.items()
            if times > 1
        }
        return max(gains, key=lambda pxd: (gains[pxd], pxd)) if gains else None

    def may_parse(self, pxd: str, module: Module) -> bool:
        """Whether the module needs this file, and the file does not depend on the module's own .pxd file."""
        own = str(module.source.with_suffix(".pxd"))
        brought = self.translator.cimports(pxd)
        return own not in brought and brought <= self.translator.cimports(str(module.source))

    def parse_and_grow(self, pxd: str, modules: Sequence[Module]) -> NoReturn:
        with self.working:
            self.context.find_module(self.translator.module_of(pxd), need_pxd=1)
        self.parsed |= self.translator.cimports(pxd)
        self.exit(self.grow(modules))

    def compile(self, module: Module) -> NoReturn:
        with self.working, TemporaryFile() as said:
            os.dup2(said.fileno(), 2)  # hints and warnings of 150 modules would bury an error
            options = CompilationOptions(self.translator.options, output_file=str(module.c_file))
            self.context.options = options
            succeeded = False
            try:
                succeeded = (
                    compile_single(str(module.source), options, module.name, context=self.context).num_errors == 0
                )
            except Exception:  # of the compiler itself
                traceback.print_exc()
            if not succeeded:
                sys.stderr.flush()
                said.seek(0)
                print(said.read().decode(errors="replace"), flush=True)
        self.exit(succeeded)

    def compile_shared(self) -> NoReturn:
        shared = self.translator.shared
        with self.working:
            error, _ = generate_shared_module(
                CompilationOptions(
                    shared_c_file_path=str(self.translator.new_shared),
                    module_name=shared.name,
                    compiler_directives={"emit_code_comments": False},
                    language_level=3,
                )
            )
        self.exit(error is None)

    @staticmethod
    def exit(succeeded: bool) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if succeeded else 1)
