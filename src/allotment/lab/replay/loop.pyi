# Made from loop.pyx by `make stubs`: change it there.

from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._settings.record import Settings

def rounded_sizes(settings: Settings, requests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What each request becomes under these settings."""

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
        """Compare from now on with a recording, and answer from it. The columns are changed."""
    def keep_journal(self) -> None:
        """Keep from now on what is done, for `places`, `segment_events` and `late_frees`; see journal.pxd."""
    @property
    def block_places(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32]]:
        """By block of the workload: address, size and the call that placed it, -1 for one before the history.

        pre: a journal is kept. A block that was never placed has size 0.
        """
    @property
    def segment_events(self) -> NDArray[np.void]:
        """`SEGMENT_EVENT` records in order. pre: a journal is kept"""
    @property
    def late_frees(self) -> NDArray[np.void]:
        """`LATE_FREE` records in order. pre: a journal is kept"""
    def suggest(self, places: NDArray[np.uint64]) -> None:
        """Put segments where these are, in turn, as long as that is possible. Pairs of address and size."""
    @property
    def difference(self) -> tuple[int, tuple[int, int, int, int] | None] | None:
        """(entry, (action, address, size, stream)) of the first difference; None if all that was recorded came."""
    def restore(self, layouts: NDArray[np.void], pieces: NDArray[np.void]) -> None:
        """Lay segments out as they were when the recording began."""
    def begin_window(self) -> None:
        """Count from here: what came before only set the scene."""
    def sample(self, samples: NDArray[np.uint64], stride: int) -> None:
        """Keep the largest live and reserved size of every `stride` calls."""
    def run(
        self,
        calls: NDArray[np.void],
        stop_at_refusal: bool = False,
        stop_at_difference: bool = False,
        background: bool = False,
    ) -> bool:
        """Make the calls; False if not all were made: one ended out of memory, or differed, and that was to end it.

        `background` calls are from before the history: no event of theirs finishes by itself.
        """
    def figures(self) -> dict[str, Any]:
        """The counters of the window."""
    @property
    def driver_ms(self) -> float:
        """What the calls of a driver in the window would take, in milliseconds."""
    def driver(self) -> dict[str, Any]:
        """What a driver would have been called for in the window."""
    def moment(self) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """Every mapped block as it is now, by address, and the address of every block of the workload, 0 for none.

        Of PyTorch's placement alone, as `blocks`.
        """
    def blocks(self) -> list[tuple[int, int, int]]:
        """(address, size, state) of every mapped block, by address; the states are of `BlockState`.

        Of PyTorch's placement alone: it is compared with a recording, and none is of another.
        """
