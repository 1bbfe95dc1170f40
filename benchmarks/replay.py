"""The speed of replays, on one core: python benchmarks/replay.py SNAPSHOT...

Input trace entries a second of processor time, comparison off, loading not counted; the best and the median of several
replays, the same with every entry compared, and the time to load. Without a file, the sample of the package is taken.
"""

from __future__ import annotations

import statistics
import sys
import time

from allotment.lab.replay.run import SAMPLE, read_recording

ENTRIES = 2_000_000
"""The least number of entries replayed for each file."""


def main(snapshots: list[str]) -> None:
    print(f"{'snapshot':40} {'entries':>9} {'best':>10} {'median':>10} {'compared':>10} {'load':>8}")
    for snapshot in snapshots or [SAMPLE]:
        start = time.perf_counter()
        recording = read_recording(snapshot)
        load = time.perf_counter() - start
        times = [recording.replay_uncompared() for _ in range(max(5, ENTRIES // max(recording.entries, 1)))]
        rates = [recording.entries / seconds / 1e6 for seconds in (min(times), statistics.median(times))]
        compared = recording.entries / min(recording.replay().seconds for _ in range(5)) / 1e6
        print(
            f"{snapshot.rsplit('/', 1)[-1]:40} {recording.entries:>9,} {rates[0]:>6.1f} M/s {rates[1]:>6.1f} M/s"
            f" {compared:>6.1f} M/s {load:>6.2f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
