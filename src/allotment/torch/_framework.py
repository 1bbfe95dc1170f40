"""PyTorch, or an error that says how to get it, also for a PyTorch that is too old."""

import sys
from types import ModuleType

from allotment._adapters.frameworks import import_framework
from allotment._rules import OLDEST


def _is_the_program(package: str) -> bool:
    """Whether Python was started with `-m package`, which imports the package before its `__main__`."""
    arguments = sys.orig_argv
    return "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == [package]


def _refuse_too_old(torch: ModuleType) -> None:
    """Raise ImportError for a PyTorch that lacks functions that every mode uses."""
    if not hasattr(torch.cuda.memory, "host_memory_stats"):
        raise ImportError(
            f"allotment.torch needs PyTorch {OLDEST} or newer, and {torch.__version__} is installed; install it with:"
            f" pip install 'torch>={OLDEST}'",
            name="torch",
        )


try:
    torch = import_framework("allotment.torch", "torch", "torch")
    _refuse_too_old(torch)
except ImportError as error:
    if not _is_the_program("allotment.torch"):
        raise
    print(error, file=sys.stderr)
    sys.exit(2)  # as for other reasons why the program cannot be run
