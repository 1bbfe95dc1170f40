"""Finds how much memory the system lets this process use.

A process is in a memory control group, which may have a limit itself or through any group around it. Version 2 has one
tree for everything, version 1 a separate one for memory; some systems mount both. Inside a container, the process's own
group is often mounted as the visible root, under another path than the group's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryGroup", "memory_groups"]


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The files of one control group. Unused file cache counts as usage but is available."""

    limit: Path
    usage: Path
    details: Path
    reclaimable: str
    """The line of `details` that says how much of the usage the system could reclaim."""


def memory_groups(process: Path = Path("/proc/self")) -> list[MemoryGroup]:
    """Return the control groups whose limits apply to a process, innermost first; [] if there are none."""
    try:
        mounts = _mounts((process / "mountinfo").read_text())
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += [_version_2(group) for group in _group_and_parents(mounts.get("2"), path)]
        elif "memory" in controllers.split(","):
            found += [_version_1(group) for group in _group_and_parents(mounts.get("1"), path)]
    return [group for group in found if group.limit.is_file() and group.usage.is_file()]


def _mounts(text: str) -> dict[str, tuple[str, Path]]:
    """Return version -> (group at the root of the mount, mount point)."""
    mounts = {}
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        root, place = fields.split()[3:5]
        kind, _, options = rest.split(maxsplit=2)
        if kind == "cgroup2":
            mounts["2"] = (root, Path(place))
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts["1"] = (root, Path(place))
    return mounts


def _group_and_parents(mount: tuple[str, Path] | None, path: str) -> list[Path]:
    if mount is None:
        return []
    root, place = mount
    below = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
    if not (place / below).is_dir():
        below = Path()
    return [place / part for part in (below, *below.parents)]


def _version_2(group: Path) -> MemoryGroup:
    return MemoryGroup(group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file")


def _version_1(group: Path) -> MemoryGroup:
    return MemoryGroup(
        group / "memory.limit_in_bytes",
        group / "memory.usage_in_bytes",
        group / "memory.stat",
        "total_inactive_file",
    )
