import numpy as np
from numpy.typing import NDArray

from allotment._settings import Settings

def rounded_sizes(settings: Settings, requests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What each request becomes under these settings."""

class Replay:
    """One run of a workload through an engine of its own."""

    refused: int
    seconds: float
    cpu_seconds: float
    """Of this thread: what one core needs, however busy the machine is."""

    def __init__(
        self, settings: Settings, capacity: int, block_count: int, pools: NDArray[np.uint64], limit: int | None = None
    ) -> None: ...
    def follow(
        self,
        action: NDArray[np.uint8],
        address: NDArray[np.uint64],
        size: NDArray[np.uint64],
        stream: NDArray[np.uint64],
    ) -> None: ...
    def suggest(self, places: NDArray[np.uint64]) -> None: ...
    @property
    def difference(self) -> tuple[int, tuple[int, int, int, int] | None] | None: ...
    def restore(self, layouts: NDArray[np.void], pieces: NDArray[np.void]) -> None: ...
    def begin_window(self) -> None: ...
    def sample(self, samples: NDArray[np.uint64], stride: int) -> None: ...
    def run(
        self,
        calls: NDArray[np.void],
        stop_at_refusal: bool = False,
        stop_at_difference: bool = False,
        background: bool = False,
    ) -> bool: ...
    def figures(self) -> dict[str, int]: ...
    def blocks(self) -> list[tuple[int, int, int]]: ...
