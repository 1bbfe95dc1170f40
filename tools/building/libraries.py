"""The command `build_ext`: translates, compiles and links only what is out of date, with all cores.

setuptools compiles all files of a library when one of them has changed, one after the other, and does not support a
library of several modules. This command compiles each C file separately and then links each library. An in-place build
keeps its objects in build/objects, so that installing the package in place compiles nothing again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from building.translate import Module, Translator

JOBS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Library(Extension):
    """A shared library of several modules, named in `modules`."""

    def __init__(self, name: str, modules: list[Module], flags: dict[str, list[str]], **options: Any) -> None:
        super().__init__(name, [str(module.source) for module in modules if module.source], **options)
        self.modules = modules
        self.flags = flags  # of the compiler, by module name


@dataclass(frozen=True)
class PlainLibrary:
    """A shared library of C without Python, in the package: its sources and its flags."""

    target: Path
    sources: list[Path]
    compile_flags: list[str]
    link_flags: list[str]


class BuildLibraries(build_ext):
    """`build_ext` for libraries."""

    plain: list[PlainLibrary] = []
    shared: Module
    """The module of Cython's own functions; one of the libraries consists of it."""
    directives: dict[str, Any] = {}
    source = Path("src")
    force_translation = False
    newest = 0.0
    """The time of the last change to the build's own files: everything older is built again."""

    def run(self) -> None:
        self.is_in_place = bool(self.inplace)  # the base class changes its own
        if self.is_in_place:
            self.build_temp = str(Path("build") / "objects")
        super().run()

    def get_ext_fullpath(self, ext_name: str) -> str:
        """Return the path of a library. In place, it is written into the sources, to see what is up to date."""
        return (
            str(self.source / self.get_ext_filename(ext_name))
            if self.is_in_place
            else super().get_ext_fullpath(ext_name)
        )

    def copy_extensions_to_source(self) -> None:
        """Do nothing: see `get_ext_fullpath`."""

    def build_extensions(self) -> None:
        self.check_extensions_list(self.extensions)
        self.remove_single_modules()
        to_c = [module for library in self.extensions if not library.language for module in library.modules]
        Translator(self.source, self.shared, self.directives, JOBS).translate(
            [module for module in to_c if module.source], force=self.force_translation, newest=self.newest
        )
        for library in self.extensions:
            if library.language:
                self.translate_to_cpp(library)
        with ThreadPoolExecutor(JOBS) as pool:
            self.compile_all(pool)
            for done in [pool.submit(self.link, library) for library in self.extensions]:
                done.result()
        for plain in self.plain:
            self.build_plain(plain)

    def place_of(self, library: PlainLibrary) -> Path:
        return library.target if self.is_in_place else Path(self.build_lib) / library.target.relative_to(self.source)

    def build_plain(self, library: PlainLibrary) -> None:
        """Omit a library if no compiler accepts its flags; the package reports that where it needs the library."""
        target = self.place_of(library)
        if not any(self.is_older(target, path) for path in library.sources[0].parent.iterdir()):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            objects = self.compiler.compile(
                list(map(str, library.sources)), output_dir=self.build_temp, extra_postargs=library.compile_flags
            )
            self.compiler.link_shared_object(objects, str(target), extra_postargs=library.link_flags)
        except Exception as error:
            print(f"{target.name} is left out: it could not be compiled ({error})", flush=True)

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), *(str(self.place_of(library)) for library in self.plain)]

    def translate_to_cpp(self, library: Library) -> None:
        from Cython.Build import cythonize

        (module,) = library.modules
        cythonize(
            [Extension(module.name, [str(module.source)], language="c++")],
            compiler_directives=self.directives,
            shared_utility_qualified_name=self.shared.name,
            force=self.force_translation or self.is_older(module.c_file, self.shared.c_file),
            quiet=True,
        )

    def compile_all(self, pool: ThreadPoolExecutor) -> None:
        jobs = [
            (library, module)
            for library in self.extensions
            for module in library.modules
            if self.is_older(self.object_of(library, module), module.c_file)
        ]
        jobs.sort(key=lambda job: -job[1].c_file.stat().st_size)  # a large file at the end would run alone
        running = [pool.submit(self.compile, library, module) for library, module in jobs]
        try:
            for number, done in enumerate(as_completed(running), 1):
                done.result()
                self.show_progress(number, len(jobs))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise

    @staticmethod
    def show_progress(number: int, most: int) -> None:
        if sys.stdout.isatty():
            print(f"\rcompiling {number} of {most}", end="\n" if number == most else "", flush=True)
        elif number % 25 == 0 or number == most:
            print(f"compiling {number} of {most}", flush=True)

    def compile(self, library: Library, module: Module) -> None:
        try:
            self.compiler.compile(
                [str(module.c_file)],
                output_dir=self.build_temp,
                macros=library.define_macros,
                include_dirs=library.include_dirs,
                extra_postargs=library.flags[module.name],
            )
        except Exception:
            if not library.optional:
                raise
            print(f"{module.name} is left out: it could not be compiled", flush=True)

    def remove_single_modules(self) -> None:
        """Delete a module's own file from an earlier kind of build: Python would prefer it."""
        for library in self.extensions:
            for module in library.modules:
                if module.name != library.name:
                    Path(self.get_ext_fullpath(module.name)).unlink(missing_ok=True)

    def link(self, library: Library) -> None:
        objects = [self.object_of(library, module) for module in library.modules]
        target = Path(self.get_ext_fullpath(library.name))
        if library.optional and not all(path.exists() for path in objects):
            return
        if not any(self.is_older(target, path) for path in objects):
            return
        self.compiler.link_shared_object(
            [str(path) for path in objects],
            str(target),
            libraries=self.get_libraries(library),
            library_dirs=library.library_dirs,
            extra_postargs=library.extra_link_args,
            export_symbols=self.get_export_symbols(library),
            build_temp=self.build_temp,
            target_lang=library.language,
        )

    def get_export_symbols(self, ext: Library) -> list[str]:
        return [f"PyInit_{module.name.rpartition('.')[2]}" for module in ext.modules]

    def object_of(self, library: Library, module: Module) -> Path:
        return Path(self.compiler.object_filenames([str(module.c_file)], output_dir=self.build_temp)[0])

    def is_older(self, made: Path, than: Path) -> bool:
        return not made.exists() or made.stat().st_mtime < max(than.stat().st_mtime, self.newest, self.newest_header)

    @cached_property
    def newest_header(self) -> float:
        """The time of the last change to a header. All C is compiled again then: headers seldom change."""
        of_plain = {path.parent for library in self.plain for path in library.sources}
        headers = (path for path in self.source.rglob("*.h*") if path.suffix != ".html" and path.parent not in of_plain)
        return max((path.stat().st_mtime for path in headers), default=0.0)


def modules_below(root: Path, cpp: set[Path]) -> Iterator[Module]:
    """Yield the module of every .pyx file below a folder."""
    for path in sorted(root.rglob("*.pyx")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        yield Module(path, name, path.with_suffix(".cpp" if path in cpp else ".c"))
