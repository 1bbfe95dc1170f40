"""The thread that polls events of pinned memory, so that requests need not."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING
from weakref import ref

from allotment.errors import AllotmentError

if TYPE_CHECKING:
    from allotment._allocators.pinned.blocks import PinnedBlocks

_POLL_SECONDS = 0.0001


class Background:
    """Polls every 100 microseconds while any block waits, and sleeps otherwise."""

    def __init__(self, blocks: PinnedBlocks) -> None:
        self._awake = threading.Event()
        self._blocks = ref(blocks)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="allotment pinned memory", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread: a block waits from now on."""
        self._awake.set()

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopped = True
        self._awake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._awake.wait()
            self._awake.clear()
            while not self._stopped and self._look():
                self._awake.wait(_POLL_SECONDS)

    def _look(self) -> bool:
        """Whether any block still waits."""
        blocks = self._blocks()
        if blocks is None:
            self._stopped = True
            return False
        try:
            return blocks.process_events()
        except AllotmentError as error:
            warnings.warn(f"pinned memory that waits for copies cannot be polled: {error}", stacklevel=1)
            return False
