# Made from loop.pyx by `make stubs`: change it there.

from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._settings.record import Settings

def rounded_sizes(settings: Settings, requests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what each request is rounded to under these settings."""

class Replay:
    """One run of a workload through an engine of its own."""

    @property
    def refused(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def cpu_seconds(self) -> float: ...
    def __init__(
        self, settings: Settings, capacity: int, block_count: int, pools: NDArray[np.uint64], limit: int | None = None
    ) -> None: ...
    def follow(
        self,
        action: NDArray[np.uint8],
        address: NDArray[np.uint64],
        size: NDArray[np.uint64],
        stream: NDArray[np.uint64],
    ) -> None:
        """Compare with a recording from now on, and take answers from it. Changes the columns."""
    def keep_journal(self) -> None:
        """Record what is done from now on, for `places`, `segment_events` and `late_frees`; see journal.pxd."""
    @property
    def block_places(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32]]:
        """Return by block of the workload: address, size and the call that placed it, -1 for one before the history.

        pre: a journal is kept. A block that was never placed has size 0.
        """
    @property
    def segment_events(self) -> NDArray[np.void]:
        """Return `SEGMENT_EVENT` records in order. pre: a journal is kept"""
    @property
    def late_frees(self) -> NDArray[np.void]:
        """Return `LATE_FREE` records in order. pre: a journal is kept"""
    def suggest(self, places: NDArray[np.uint64]) -> None:
        """Suggest places for segments, in order: pairs of address and size, used as long as possible."""
    @property
    def difference(self) -> tuple[int, tuple[int, int, int, int] | None] | None:
        """Return (entry, (action, address, size, stream)) of the first difference; None if there is none."""
    def restore(self, layouts: NDArray[np.void], pieces: NDArray[np.void]) -> None:
        """Lay segments out as they were when the recording began."""
    def begin_window(self) -> None:
        """Start counting here: earlier calls only restored the initial state."""
    def sample(self, samples: NDArray[np.uint64], stride: int) -> None:
        """Store the largest live and reserved size of every `stride` calls."""
    def run(
        self,
        calls: NDArray[np.void],
        stop_at_refusal: bool = False,
        stop_at_difference: bool = False,
        background: bool = False,
    ) -> bool:
        """Make the calls; return False if one ran out of memory or differed, which stops the loop.

        `background` calls are from before the history: their events do not finish by themselves.
        """
    def figures(self) -> dict[str, Any]:
        """Return the counters of the window."""
    @property
    def driver_ms(self) -> float:
        """Return the cost of the window's driver calls, in milliseconds."""
    def driver(self) -> dict[str, Any]:
        """Return the window's driver calls."""
    def moment(self) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """Return every mapped block as it is now, by address, and the address of every block of the workload, 0 for
        none.

        Only for PyTorch's placement, as `blocks`.
        """
    def blocks(self) -> list[tuple[int, int, int]]:
        """Return (address, size, state) of every mapped block, by address; the states are those of `BlockState`.

        Only for PyTorch's placement, because it is compared with recordings, which have no other placement.
        """
