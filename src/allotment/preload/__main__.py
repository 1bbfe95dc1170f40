"""python -m allotment.preload [--depth count|serve] [--limit L] [--min-size N] [--stacks] [--jax] PROGRAM ARGUMENT...

Starts a program with a library between it and the CUDA driver. PROGRAM is a Python script, a module after -m, or a
compiled program.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys

from allotment import preload
from allotment._adapters.running import run_module, run_script
from allotment.errors import AllotmentError, SettingsError
from allotment.preload import _programs

_INSIDE = "--inside"


def say(line: str) -> None:
    print(f"allotment.preload: {line}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m allotment.preload", description=__doc__.splitlines()[2])
    found.add_argument(
        "--depth",
        choices=["count", "serve"],
        default="count",
        help="count: calls pass to the driver and are counted; serve: plain memory comes from the process's allocator",
    )
    found.add_argument("--limit", help="the most that this process may have on each device, context included: 40GiB")
    found.add_argument("--min-size", help="with serve: smaller requests pass to the driver")
    found.add_argument("--stacks", action="store_true", help="count by native stack too")
    found.add_argument("--jax", action="store_true", help="allotment.jax.install() before the program")
    found.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    found.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    found.add_argument("command", nargs=argparse.PARSER, metavar="program", help="the program and its arguments")
    return found


def main() -> None:
    reader = parser()
    options = reader.parse_args()
    program = options.command[0]
    is_compiled = not options.module and _programs.is_compiled(program)
    if not options.module and not os.path.exists(program):
        reader.exit(2, f"allotment.preload: can't open file {os.path.abspath(program)!r}: no such file\n")
    if options.inside:
        run_inside(options)
        return
    command = options.command if is_compiled else python_command(options)
    os.execve(command[0], command, os.environ | variables(options, program if is_compiled else sys.executable))


def variables(options: argparse.Namespace, program: str) -> dict[str, str]:
    """Return the variables that start the program with the library; none, with a printed reason, if it cannot be."""
    reason = _programs.why_not(program)
    if reason is None and not has_driver():
        reason = "there is no CUDA driver on this machine"
    if reason is not None:
        say(f"{program} runs without the library: {reason}")
        return {}
    if preload.depth() is not None:
        say("the library is preloaded already and keeps its settings")
        return {}
    before = os.environ.get("LD_PRELOAD")
    if before:
        say(f"LD_PRELOAD is set already; this library comes before {before}")
    try:
        return preload.environment(
            options.depth, size_or_none("--limit", options.limit), size_or_none("--min-size", options.min_size),
            options.stacks,
        )  # fmt: skip
    except AllotmentError as error:
        say(f"{program} runs without the library: {error}")
        return {}


def size_or_none(name: str, text: str | None) -> int | None:
    from allotment._settings.sizes import parse_size

    try:
        return parse_size(text) if text is not None else None
    except SettingsError as error:
        say(f"{name} is ignored: {error}")
        return None


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def python_command(options: argparse.Namespace) -> list[str]:
    """Return the command that starts this interpreter again with this module, which then runs the program."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    own = [_INSIDE, *(["--jax"] if options.jax else []), *(["-m"] if options.module else [])]
    return [sys.executable, *flags, "-m", "allotment.preload", *own, *options.command]


def run_inside(options: argparse.Namespace) -> None:
    if options.jax:
        from allotment import jax

        try:
            jax.install()
        except AllotmentError as error:
            say(f"JAX keeps its own allocator: {error}")
    sys.argv = options.command
    if options.module:
        run_module(options.command[0])
    else:
        run_script(options.command[0])


if __name__ == "__main__":
    main()
