"""PyTorch's own tools read a snapshot of ours. Needs PyTorch; a CPU build will do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import allotment

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_memory_viz_summarises_traces_and_plots_a_snapshot(tmp_path: Path) -> None:
    from torch.cuda import _memory_viz as viz

    allocator = allotment.Allocator("host")
    allocator.record_history(max_entries=1000)
    kept = [allocator.empty(size) for size in (1000, 3_000_000, 30_000_000)]
    allocator.free(allocator.malloc(5000))
    path = tmp_path / "snapshot.pickle"
    allocator.history.dump_snapshot(path)
    snapshot = pickle.loads(path.read_bytes())
    assert "total_allocated" in viz.segsum(snapshot)
    assert "cudaMalloc" in viz.trace(snapshot)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "<html" in plot(snapshot).lower() or "<script" in plot(snapshot).lower()
    assert kept
