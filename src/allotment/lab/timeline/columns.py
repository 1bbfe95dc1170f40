"""Time in columns: each is an interval, shown by its highest moments (walk.pxd explains why)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "first_highest", "gathered"]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Intervals of time, each shown by two of its moments."""

    moment: NDArray[np.int32]
    """The moments at which most was in use."""
    bands: NDArray[np.int64]
    """Bytes in use then, by interval and by owner."""
    waste_moment: NDArray[np.int32]
    """The moments at which most was wasted."""
    waste: NDArray[np.int64]
    """Bytes wasted then, by interval and by cause in the order of `Waste`."""
    reserved: NDArray[np.int64]
    """The maximum in each interval."""


def gathered(columns: Columns, edges: NDArray[np.int64]) -> Columns:
    """Return fewer columns, each from one of these numbers up to the next, with the highest moment of all in it."""
    inside = slice(int(edges[0]), int(edges[-1]))
    starts = edges[:-1] - edges[0]
    highest = first_highest(columns.bands[inside].sum(axis=1), starts) + edges[0]
    most_wasted = first_highest(columns.waste[inside].sum(axis=1), starts) + edges[0]
    return Columns(
        moment=columns.moment[highest],
        bands=columns.bands[highest],
        waste_moment=columns.waste_moment[most_wasted],
        waste=columns.waste[most_wasted],
        reserved=np.maximum.reduceat(columns.reserved[inside], starts),
    )


def first_highest(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each interval, up to the start of the next one, the first index of its maximum."""
    which = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    found = np.flatnonzero(values == np.maximum.reduceat(values, starts)[which])
    _, first = np.unique(which[found], return_index=True)
    return np.asarray(found[first])
