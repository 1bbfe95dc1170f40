"""PyTorch, or an error that says how to get it."""

import sys

from allotment._adapters.frameworks import import_framework


def _is_the_program(package: str) -> bool:
    """Whether Python was started with `-m package`, which imports the package before its `__main__`."""
    arguments = sys.orig_argv
    return "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == [package]


try:
    torch = import_framework("allotment.torch", "torch", "torch")
except ImportError as error:
    if not _is_the_program("allotment.torch"):
        raise
    print(error, file=sys.stderr)
    sys.exit(2)  # as for other reasons why the program cannot be run
