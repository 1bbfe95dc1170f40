"""The arguments of a pause that say where its contents are kept."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

from allotment._settings import parse_size
from allotment.errors import RequestError

__all__ = ["Keeping"]

_KINDS = ("host", "nothing", "file")


@dataclass(frozen=True, slots=True)
class Keeping:
    """The arguments of `Allocator.pause`, checked, and read once: an object may answer differently each time."""

    keep: str = "host"
    keep_host: bool = False
    folder: str | PathLike[str] | None = None
    host_limit: int | str | None = None

    def __post_init__(self) -> None:
        keep = str.__str__(self.keep) if isinstance(self.keep, str) else None
        if keep not in _KINDS:
            raise RequestError(f'keep is "host", "nothing" or "file", not {self.keep!r}')
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "keep_host", bool(self.keep_host))
        if self.keep_host and self.keep != "host":
            raise RequestError(f"keep_host keeps pages of the host, and keep={self.keep!r} has none; use keep='host'")
        if self.folder is not None:
            if self.keep != "file":
                raise RequestError(f'folder is for keep="file", not for keep={self.keep!r}')
            fspath(self.folder)
        if self.host_limit is not None:
            parse_size(self.host_limit)

    def check_host_limit(self, needed: int) -> None:
        """Raise RequestError if host memory for so many bytes is more than allowed."""
        if self.keep != "host" or self.host_limit is None:
            return
        limit = parse_size(self.host_limit)
        if needed > limit:
            raise RequestError(
                f"the contents of the memory to be paused need {needed} bytes of the host, and host_limit allows "
                f'{limit}; raise it, or use keep="file" or keep="nothing". Nothing was paused'
            )
