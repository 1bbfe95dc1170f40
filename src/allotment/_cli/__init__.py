"""The command line: the list of commands, exit codes, and how errors are printed.

A command is a module here with the command's name, with a function `command` that Typer can read. The modules import
what they need when they run, so that listing the commands costs nothing.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from enum import IntEnum
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any, NoReturn

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
except ImportError:
    print("allotment: the commands need Typer and Rich: pip install 'allotment[cli]'", file=sys.stderr)
    raise SystemExit(3) from None

from allotment._texts import printable
from allotment.errors import AllotmentError, DeviceError, FormatError, InvariantError, RequestError, UnsupportedError

COMMANDS = ("bench", "calibrate", "conformance", "demo", "diff", "explain", "replay", "stats", "top", "tune", "view")


class ExitCode(IntEnum):
    """Exit codes of commands. With several files, bad input precedes a difference, which precedes not yet supported."""

    DONE = 0
    DIFFERENT = 1
    BAD_INPUT = 2
    NOT_YET = 3

    @staticmethod
    def of_all(codes: Sequence[ExitCode]) -> ExitCode:
        worst_first = (ExitCode.BAD_INPUT, ExitCode.DIFFERENT, ExitCode.NOT_YET)
        return next((code for code in worst_first if code in codes), ExitCode.DONE)

    @staticmethod
    def of_error(error: AllotmentError) -> ExitCode:
        if isinstance(error, UnsupportedError):
            return ExitCode.NOT_YET
        return ExitCode.BAD_INPUT if isinstance(error, FormatError | RequestError | DeviceError) else ExitCode.DIFFERENT


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit; by default with the arguments of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may have characters that the terminal does not
    try:
        _application()(args=arguments, prog_name="allotment")
    except InvariantError:
        raise  # a bug in Allotment: show the traceback
    except AllotmentError as error:
        print(f"allotment: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(ExitCode.of_error(error)) from None
    except OSError as error:
        place = printable(str(error.filename or "input or output"))
        print(f"allotment: {place}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(ExitCode.BAD_INPUT) from None
    except MemoryError as error:
        print(f"allotment: {error or 'the host has no memory for this'}", file=sys.stderr)
        raise SystemExit(ExitCode.BAD_INPUT) from None
    raise SystemExit(ExitCode.DONE)


class _BareFlags:
    """Help that shows no type after options without a value: `--json`, not `--json <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Command(_BareFlags, TyperCommand):
    pass


class _Group(_BareFlags, TyperGroup):
    pass


def _paragraphs(docstring: str) -> str:
    """Return a docstring for a terminal of any width, with one line for each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(docstring).split("\n\n"))


def _application() -> typer.Typer:
    application = typer.Typer(
        cls=_Group,
        help="A caching memory allocator for accelerators and hosts.",
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    application.callback()(_options)
    for name in COMMANDS:
        command = import_module(f"allotment._cli.{name}").command
        application.command(name, cls=_Command, help=_paragraphs(command.__doc__))(command)
    return application


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"allotment {sys.modules['allotment'].__version__}")  # not imported: it is a layer above
        raise typer.Exit
