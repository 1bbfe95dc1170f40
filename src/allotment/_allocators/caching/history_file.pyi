# Made from history_file.pyx by `make stubs`: change it there.

from os import PathLike

def finish_all() -> None:
    """Write the rest and end the files, at the end of the process."""

def opened_as_it_is(path: str, flags: int) -> int:
    """An opener for `open` that keeps what another recorder has written to the file."""

class HistoryFile:
    """A file that a history is written to, from when it is started until it is finished.

    Raises OSError, and RequestError if another recorder writes to it.
    """

    def __init__(self, path: str | PathLike[str]) -> None: ...
