"""Settings to try, as text that can be pasted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

__all__ = ["FEW", "OURS", "all_candidates", "is_ours"]

EXPANDABLE = ("", "expandable_segments:True")
SPLITS = ("", *(f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512)))
ROUNDINGS = ("", "roundup_power2_divisions:4", "roundup_power2_divisions:8")
COLLECTION = ("", "garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8")
FINER_SPLITS = ("", *(f"max_split_size_mb:{size}" for size in (21, 24, 48, 96, 160, 192, 320, 384, 640, 768, 1024)))
FINER_ROUNDINGS = ("", *(f"roundup_power2_divisions:{divisions}" for divisions in (1, 2, 4, 8, 16, 32)))
FINER_COLLECTION = ("", *(f"garbage_collection_threshold:{share}" for share in (0.5, 0.6, 0.7, 0.8, 0.9)))
OURS = ("placement:dense",)
"""Settings of this package: they need Allotment under PyTorch."""
GRAINS = ("", *(f"dense_grain:{grain}" for grain in (24, 48)))
FINER_GRAINS = ("", *(f"dense_grain:{grain}" for grain in (16, 32, 64, 128, 192, 256)))


def is_ours(settings: str) -> bool:
    """Whether settings have a key that PyTorch's own allocator does not know."""
    return any(part in OURS for part in settings.split(","))


FEW = ("", "expandable_segments:True", *SPLITS[2:4], "expandable_segments:True,roundup_power2_divisions:8", *OURS)
"""The settings that help most often."""


def all_candidates(limited: bool, finely: bool = False) -> Iterator[str]:
    """Yield settings, the most helpful ones first; garbage collection has an effect only if memory is limited.

    `finely` adds values in between, about 1,000 combinations in all if memory is limited.
    """
    seen = set(FEW)
    yield from FEW
    yield from _combined(seen, OURS, GRAINS)
    yield from _combined(seen, EXPANDABLE, ROUNDINGS, SPLITS, COLLECTION if limited else ("",))
    if finely:
        yield from _combined(seen, OURS, FINER_GRAINS)
        splits = (*SPLITS, *FINER_SPLITS[1:])
        yield from _combined(seen, EXPANDABLE, FINER_ROUNDINGS, splits, FINER_COLLECTION if limited else ("",))


def _combined(seen: set[str], *choices: tuple[str, ...]) -> Iterator[str]:
    for parts in product(*choices):
        text = ",".join(part for part in parts if part)
        if text not in seen:
            seen.add(text)
            yield text
