"""Replays recorded runs: what happened, why they needed that much memory, and what other settings would have done.

    from allotment.lab import explain, read_recording, replay, tune

    recording = read_recording("snapshot.pickle")          # read once, used by all of these
    explain(recording)                                     # shows itself in a notebook
    replay(recording, "expandable_segments:True").peak_reserved_bytes
    tune(recording, "fit:20GiB").to_dataframe()            # where pandas is there

The functions have the names of the packages that do the work, so they are imported after those packages.
"""

from allotment.lab.api import diff, explain, read_recording, replay, tune
from allotment.lab.explain.difference import Comparison
from allotment.lab.explain.report import Explanation
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import Recording
from allotment.lab.tune.search import Candidate, Tuned

__all__ = [
    "Candidate",
    "Comparison",
    "Explanation",
    "Recording",
    "Result",
    "Tuned",
    "diff",
    "explain",
    "read_recording",
    "replay",
    "tune",
]
