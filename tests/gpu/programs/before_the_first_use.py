"""Checks of what a program tells PyTorch's allocator before it first uses a GPU, under the patched adapter."""

from __future__ import annotations

from contextlib import suppress

import torch
from checks import check, run_checks

import allotment.torch
from allotment.torch._hooks import allocator_of

allotment.torch.install(settings="", patch=True)

MIB = 1 << 20


@check
def there_are_no_figures_before_the_first_use() -> None:
    assert torch.cuda.memory_stats() == {}
    assert not torch.cuda.is_initialized()
    assert torch.accelerator.memory_stats() == {}
    assert torch.accelerator.memory_allocated() == 0
    torch.accelerator.reset_peak_memory_stats()


@check
def settings_given_before_the_first_use_are_in_force() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert allocator_of(0).settings.expandable_segments
    assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()), tensor


@check
def the_allocators_figures_are_told_once_there_is_one() -> None:
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() >= tensor.numel()


@check
def an_observer_is_told_before_out_of_memory_is_raised() -> None:
    reported = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: reported.append(numbers))
    total = torch.cuda.mem_get_info()[1]
    with suppress(torch.OutOfMemoryError):
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    (numbers,) = reported
    device, size, most, free = numbers
    assert device == 0 and size >= 2 * total and most == total and 0 < free < total, numbers


if __name__ == "__main__":
    run_checks()
