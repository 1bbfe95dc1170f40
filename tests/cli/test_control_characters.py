"""What a file is called, and what is in it, reaches a terminal without control characters."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from allotment._cli import main
from allotment._core.edge.words import Action
from allotment.lab.explain.labels import labels_of
from allotment.lab.replay.run import Recording, read_recording

TRACE = Path(__file__).parents[1] / "traces" / "graph_train.default.pickle.gz"
HOSTILE = "a\x1b]0;b\x07"


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_name_of_a_file_in_a_folder_is_shown_without_them(tmp_path, capsys, is_damaged):
    hostile = tmp_path / f"{HOSTILE}.pickle.gz"
    shutil.copy(TRACE, tmp_path / "other.pickle.gz")
    if is_damaged:
        hostile.write_bytes(b"damaged")
    else:
        shutil.copy(TRACE, hostile)
    with pytest.raises(SystemExit):
        main(["stats", str(tmp_path)])
    shown = "".join(capsys.readouterr())
    assert "a\\x1b]0;b\\x07" in shown
    assert "\x1b]" not in shown and "\x07" not in shown


def test_labels_of_a_recording_have_none():
    snapshot = read_recording(TRACE).snapshot
    trace = next(trace for trace in snapshot.traces if len(trace))
    named = np.where(trace.action == Action.ALLOC, 0, -1).astype(np.int32)
    hostile = dataclasses.replace(
        snapshot,
        traces=(dataclasses.replace(trace, user_metadata=named),),
        user_metadata=(HOSTILE,),
    )
    assert [each.names for each in labels_of(Recording(hostile, trace.device))] == [["a\\x1b]0;b\\x07"]]
