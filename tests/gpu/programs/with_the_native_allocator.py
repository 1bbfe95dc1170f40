"""Checks with PyTorch's own allocator as the current one: installing too late, and a pool made of our memory."""

from __future__ import annotations

import gc

import torch
from checks import check, run_checks

from allotment.torch._hooks import allocator_of
from allotment.torch._install import install, is_installed, raw_allocator

MIB = 1 << 20


@check
def installing_after_the_first_use_of_the_gpu_is_refused_and_says_what_to_do() -> None:
    tensor = torch.ones(MIB, device="cuda")
    try:
        install()
    except Exception as error:
        assert "no longer be replaced" in str(error) and "python -m allotment.torch" in str(error), str(error)
    else:
        raise AssertionError("it was installed")
    assert not is_installed()
    assert torch.cuda.get_allocator_backend() == "native"
    assert float(tensor.sum()) == MIB


@check
def a_pool_of_the_native_allocator_is_made_of_our_memory() -> None:
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool(raw_allocator())
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((size,), 3, dtype=torch.uint8, device="cuda") for size in (MIB, 5 * MIB, 40 * MIB)]
    outside = torch.full((MIB,), 4, dtype=torch.uint8, device="cuda")
    ours = allocator_of(0).stats()["allocated_bytes.all.current"]
    assert ours == sum(segment["total_size"] for segment in pool.snapshot()) > 45 * MIB
    assert torch.cuda.get_allocator_backend() == "native"
    assert all(bool((tensor == 3).all()) for tensor in tensors) and bool((outside == 4).all())
    del tensors, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert allocator_of(0).stats()["allocated_bytes.all.current"] == 0
    assert torch.cuda.memory_reserved() <= before + 20 * MIB


if __name__ == "__main__":
    run_checks()
