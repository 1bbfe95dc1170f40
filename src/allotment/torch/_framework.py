"""PyTorch, or an error that says how to get it."""

import sys

from allotment._adapters.frameworks import import_framework


def _is_the_program(package: str) -> bool:
    """Whether Python was started with `-m package`, which imports the package before its `__main__`."""
    given = sys.orig_argv
    return "-m" in given and given[given.index("-m") + 1 :][:1] == [package]


try:
    torch = import_framework("allotment.torch", "torch", "torch")
except ImportError as error:
    if not _is_the_program("allotment.torch"):
        raise
    print(error, file=sys.stderr)
    sys.exit(2)  # as for what else keeps the program from being run
