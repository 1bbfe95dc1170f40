"""Where the system says how much memory this process may use.

A process sits in a memory control group, which may be limited itself or through any of the groups around it.
Version 2 has one tree for everything, version 1 one for memory alone; some systems mount both. Inside a
container the process's own group is often mounted as the root of what can be seen, under another path than
the one the process is said to be in.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryGroup", "memory_groups"]


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The files of one control group. What is in the file cache and not in use counts as usage but can be had."""

    limit: Path
    usage: Path
    details: Path
    reclaimable: str
    """The line of `details` that tells how much of the usage the system would give up."""


def memory_groups(process: Path = Path("/proc/self")) -> list[MemoryGroup]:
    """The control groups whose limits hold for a process, innermost first; [] if there are none."""
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
    """Version -> (the group that is the root of the mount, where it is mounted)."""
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
