# Made from forks.pyx by `make stubs`: change it there.

def take_long_locks() -> bool:
    """Every long lock, ahead of a fork. False, and none is held, if somebody keeps one of them for longer."""

def give_long_locks() -> None: ...
