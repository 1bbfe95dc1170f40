"""The ranges and counters that a profiler receives for a GPU's driver calls, with `nvtx:True`."""

import pytest

from helpers.profiler import heard, ranges_of, samples_of

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_driver_calls_are_ranges_and_all_memory_that_came_goes(device, settings, tmp_path):
    lines = heard(
        f"""
        from allotment import *

        alloc = Allocator("cuda:0", settings="nvtx:True,{settings}")
        stream = Stream(alloc)
        block = alloc.malloc(100 << 20, stream)
        alloc.free(block)
        for _ in range(100):
            alloc.free(alloc.malloc(30 << 20, stream))
        alloc.empty_cache()
        alloc.close()
        """,
        tmp_path,
    )
    assert ranges_of(lines) >= ({"chunk_create", "map", "unmap"} if settings else {"segment_allocate", "segment_free"})
    reserved = samples_of(lines, "cuda:0 reserved")
    assert 100 * MIB <= max(reserved) <= 160 * MIB
    assert reserved[-1] == 0


@pytest.mark.parametrize("mode", ["hooks", "deep"])
def test_pytorch_reports_too(device, mode, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    lines = heard(
        f"""
        import allotment.torch

        allotment.torch.install({mode!r}, settings="nvtx:True")
        import torch

        for size in (1 << 20, 1 << 24, 1 << 26):
            torch.ones(size, device="cuda").sum().item()
        torch.cuda.empty_cache()
        """,
        tmp_path,
    )
    assert ranges_of(lines) >= {"segment_allocate", "segment_free"}
    assert max(samples_of(lines, "cuda:0 reserved")) >= 4 << 26
