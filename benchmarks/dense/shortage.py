"""Placements on a device that has just enough memory.

    python benchmarks/dense/shortage.py SNAPSHOT_OR_FOLDER... [--full 0.98]

What must be held is all memory in use, and what private pools keep. Prints, for each workload: the requests that are
refused on a device whose memory is filled to 98 % by the peak of what must be held, so that a perfect packing would
refuse none; and the smallest device, found by bisection, on which none is refused, in MiB above that peak and as a
ratio to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from compare import DENSE, SETTINGS, geometric_mean, least_reserved, snapshots

from allotment.lab.replay.run import read_recording

PAGE = 2 << 20
MIB = 1 << 20
MOST, MOST_MIB = 1.01, 16
"""The goal for dense placement: at most this factor of what must be held, or this many MiB more."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Placements on a device that has just enough memory.")
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--full", type=float, default=0.98)
    arguments = parser.parse_args()
    titles = ["workload", "held MiB", "requests", *(f"{kind} refused" for kind in SETTINGS)]
    titles += [f"{kind} smallest" for kind in SETTINGS] + [f"{DENSE} MiB more"]
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    smallest: dict[str, list[float]] = {kind: [] for kind in SETTINGS}
    refused: dict[str, int] = dict.fromkeys(SETTINGS, 0)
    missed = 0
    for file in snapshots(arguments.places):
        recording = read_recording(file)
        live = recording.replay("").recorded_peak_active_bytes
        held = max(least_reserved(recording), live)
        capacity = -(-int(held / arguments.full) // PAGE) * PAGE
        cells = [file.name.split(".pickle")[0], f"{held / MIB:,.0f}", f"{len(recording.calls) // 2:,}"]
        for kind, settings in SETTINGS.items():
            count = recording.replay(settings, capacity).ooms
            refused[kind] += count
            cells.append(str(count))
        for kind, settings in SETTINGS.items():
            found = recording.fit(settings)
            smallest[kind].append((found or 0) / held)
            cells.append(f"{(found or 0) / held:.4f}")
        more = smallest[DENSE][-1] * held - held
        missed += more > max((MOST - 1) * held, MOST_MIB * MIB)
        print("| " + " | ".join([*cells, f"{more / MIB:.1f}"]) + " |", flush=True)
    print()
    for kind in SETTINGS:
        ratios = smallest[kind]
        print(f"{kind}: refused {refused[kind]}; smallest device {geometric_mean(ratios):.4f}, worst {max(ratios):.4f}")
    print(f"dense above {MOST} and above {MOST_MIB} MiB more: {missed} of {len(smallest[DENSE])}")


if __name__ == "__main__":
    main()
