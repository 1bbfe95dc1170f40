"""Results about a recording that are computed once and used by all parts of an explanation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allotment.lab.explain.blocks import Blocks, blocks_of
from allotment.lab.explain.labels import Labels, labels_of
from allotment.lab.explain.origins import Origins, origins_of
from allotment.lab.explain.steps import Steps, steps_of
from allotment.lab.replay.run import Recording

if TYPE_CHECKING:
    from allotment.lab.explain.kinds import Kinds

__all__ = ["Study"]


class Study:
    """A recording with its blocks, steps, origins and kinds, each computed on first use."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @cached_property
    def blocks(self) -> Blocks:
        """Every block from birth to death."""
        return blocks_of(self.recording)

    @cached_property
    def labels(self) -> list[Labels]:
        """What the program says about its memory."""
        return labels_of(self.recording)

    @cached_property
    def in_use(self) -> NDArray[np.int64]:
        """Bytes requested and not yet freed, by moment."""
        return self.blocks.in_use()

    @cached_property
    def origins(self) -> Origins:
        """The line of each block."""
        return origins_of(self.recording, self.blocks)

    @cached_property
    def steps(self) -> Steps | None:
        """The steps of the run; None if its history does not repeat itself."""
        return steps_of(self.recording, self.blocks, self.labels)

    @cached_property
    def kinds(self) -> Kinds:
        """Kind of memory of each block."""
        from allotment.lab.explain.kinds import classify

        return classify(self)

    def lines_of(self, lives: NDArray[np.int64]) -> list[str]:
        """Return the line of each of these blocks."""
        lines = self.origins.lines
        return [lines[number] for number in self.origins.of_life[lives].tolist()]
