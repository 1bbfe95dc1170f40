# Made from walk.pyx by `make stubs`: change it there.

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment.lab.timeline.columns import Columns

class Event(IntEnum):
    """What happens to the life of a moment."""

    NOTHING = ...
    BEGINS = ...
    ENDS = ...
    WAITS = ...

class UnitReach(IntEnum):
    """The relation of a unit of memory to the request that the waste is computed for."""

    REACHABLE = ...
    FOR_OTHER_STREAM = ...
    IN_OTHER_POOL = ...

class Walk:
    """A place in the history. `lives` and `units` are columns by name: see walk.pxd."""

    @property
    def now(self) -> int: ...
    @property
    def moments(self) -> int: ...
    def __init__(self, lives: dict[str, NDArray[Any]], units: dict[str, NDArray[Any]], atoms: int) -> None: ...
    def start(
        self, moment: int, live: NDArray[np.int32], units: NDArray[np.int32], band: NDArray[np.uint8], bands: int
    ) -> None:
        """Move to a moment with these lives and units; `band` has the owner of each life."""
    def alive(self) -> NDArray[np.int32]:
        """Return the current lives, in no order."""
    def run(self, edges: NDArray[np.int32]) -> Columns:
        """Walk to the last of these moments; an interval spans from one of them up to the next, exclusive.

        pre: they rise, and the first is now
        """
