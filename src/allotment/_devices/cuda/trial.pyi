# Made from trial.pyx by `make stubs`: change it there.

from collections.abc import Callable

def try_every_function(index: int, report: Callable[[str, str], None]) -> None: ...
