# Made from history_file.pyx by `make stubs`: change it there.

from os import PathLike

def finish_all() -> None:
    """Write what is left, and end the files: at the end of the process."""

def opened_as_it_is(path: str, flags: int) -> int:
    """For `open`: what another recorder has written there stays."""

class HistoryFile:
    """A file that a history is written to, from when it is started until it is finished.

    Raises OSError, and RequestError if another recorder writes to it.
    """

    def __init__(self, path: str | PathLike[str]) -> None: ...
