"""python -m allotment.torch [--mode M] [--settings S] [--dense] [--pinned P] [--memory-saver] [--no-patch] program

Runs an unchanged program with PyTorch's CUDA memory served from Allotment.
"""

from __future__ import annotations

import argparse
import os
import sys

from allotment._adapters.running import run_module, run_script
from allotment.errors import AllotmentError
from allotment.torch import memory_saver
from allotment.torch._install import install
from allotment.torch._pinned.pinned import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m allotment.torch", description=__doc__.splitlines()[2])
    parser.add_argument("--settings", help="a settings string; by default PyTorch's own variables are read")
    parser.add_argument(
        "--mode",
        choices=["auto", "hooks", "deep"],
        default="auto",
        help="deep: replaces PyTorch's own allocator, compiled once; hooks: a plug-in; auto: deep if it is"
        " proven or a check passes, else hooks",
    )
    parser.add_argument(
        "--dense", action="store_true", help="dense placement, which reserves 1.01 to 1.05 of what the program uses"
    )
    parser.add_argument(
        "--pinned",
        choices=KINDS,
        help="pinned memory from our allocator too: with PyTorch's decisions, or without rounding to powers of two",
    )
    parser.add_argument(
        "--no-patch",
        action="store_true",
        help="in hooks mode, do not replace torch.cuda.memory_stats and similar functions, which then raise",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument(
        "--memory-saver",
        action="store_true",
        help="`import torch_memory_saver` finds allotment.torch.memory_saver, here and in processes started from here",
    )
    # In one piece, because argparse would take a "--" behind the first piece for its own.
    parser.add_argument(
        "command", nargs=argparse.PARSER, metavar="program", help="a script, or with -m a module, and its arguments"
    )
    options = parser.parse_args()
    program = options.command[0]
    if not options.module and not os.path.exists(program):
        parser.exit(2, f"allotment.torch: can't open file {os.path.abspath(program)!r}: no such file\n")
    try:
        patch = False if options.no_patch else True if options.mode == "hooks" else None
        install(options.mode, settings=options.settings, patch=patch, dense=options.dense, pinned=options.pinned)
        if options.memory_saver:
            memory_saver.install()
    except AllotmentError as error:
        parser.exit(2, f"allotment.torch: {error}\n")
    sys.argv = options.command
    if options.module:
        run_module(program)
    else:
        run_script(program)


if __name__ == "__main__":
    main()
