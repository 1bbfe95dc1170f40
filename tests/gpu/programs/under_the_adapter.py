"""Checks with Allotment as PyTorch's allocator. Arguments: the mode, and the settings string, "" for the defaults."""

from __future__ import annotations

import pickle
import random
import sys
import tempfile
import threading
import warnings
from pathlib import Path

from checks import check, run_checks

from allotment.torch._install import install, is_installed

MODE, SETTINGS = sys.argv[1:]
install(MODE, settings=SETTINGS)

import torch  # noqa: E402

from allotment._devices.cuda.device import CudaDevice  # noqa: E402
from allotment.torch import memory  # noqa: E402
from allotment.torch._replacements import allocator_of  # noqa: E402

MIB = 1 << 20
SIZES = (1, 511, 512, 513, 4_096, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB, 10 * MIB, 11 * MIB, 25 * MIB, 130 * MIB)
RACES = 100
GPU = CudaDevice(0)


def filled(size: int, value: int) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def assert_filled(tensor: torch.Tensor, value: int) -> None:
    assert bool((tensor == value).all()), f"{tensor.numel()} bytes should all be {value}"


@check
def the_allocator_in_use_is_ours() -> None:
    assert is_installed()
    before = memory.memory_allocated()
    tensor = filled(5 * MIB, 1)
    assert memory.memory_allocated() - before == 5 * MIB
    assert allocator_of(0).stats()["allocated_bytes.all.current"] == memory.memory_allocated("cuda:0")
    del tensor
    assert memory.memory_allocated() == before


@check
def installing_a_second_time_is_refused_or_changes_nothing() -> None:
    try:
        install(settings=SETTINGS)
    except Exception as error:
        assert "install" in str(error).lower()
    assert is_installed()


@check
def tensors_of_many_sizes_hold_what_was_written() -> None:
    choose = random.Random(1)
    live: list[tuple[torch.Tensor, int]] = []
    for step in range(600):
        if live and choose.random() < 0.4:
            tensor, value = live.pop(choose.randrange(len(live)))
            assert_filled(tensor, value)
            del tensor
        else:
            live.append((filled(choose.choice(SIZES), step % 251), step % 251))
        if sum(tensor.numel() for tensor, _ in live) > 4_000 * MIB:
            live.pop(0)
    for tensor, value in live:
        assert_filled(tensor, value)
    allocator_of(0).inspection.check_invariants()


@check
def an_empty_tensor_takes_no_memory() -> None:
    before = memory.memory_allocated()
    tensor = torch.empty(0, device="cuda")
    assert tensor.data_ptr() == 0 and memory.memory_allocated() == before


def race(recorded: bool) -> bool:
    """Return whether a late reader on a side stream sees the right values, though its tensor is freed meanwhile."""
    side = torch.cuda.Stream()
    tensor = filled(3 * MIB, 1)
    seen = torch.empty_like(tensor)
    torch.cuda.synchronize()
    with GPU.hold(side.cuda_stream):
        with torch.cuda.stream(side):
            seen.copy_(tensor)
        if recorded:
            tensor.record_stream(side)
        address = tensor.data_ptr()
        del tensor
        other = filled(3 * MIB, 2)
        torch.cuda.current_stream().synchronize()
        assert (other.data_ptr() == address) is not recorded
    torch.cuda.synchronize()
    return bool((seen == 1).all())


@check
def a_late_reader_sees_another_tensor_without_record_stream() -> None:
    assert sum(race(recorded=False) for _ in range(RACES)) == 0


@check
def a_late_reader_sees_its_own_tensor_with_record_stream() -> None:
    assert sum(race(recorded=True) for _ in range(RACES)) == RACES


def in_threads(count: int, work) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@check
def threads_with_streams_of_their_own_do_not_disturb_each_other() -> None:
    def work(number: int) -> None:
        choose = random.Random(number)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(100):
                tensors = [filled(choose.choice(SIZES[:10]), number + 1) for _ in range(4)]
                for tensor in tensors:
                    assert_filled(tensor, number + 1)
        stream.synchronize()

    in_threads(8, work)
    allocator_of(0).inspection.check_invariants()


@check
def gradients_are_right_when_several_threads_run_backward() -> None:
    def work(number: int) -> None:
        generator = torch.Generator("cuda").manual_seed(number)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                weight = torch.randn(256, 256, device="cuda", dtype=torch.float64, generator=generator)
                weight.requires_grad_()
                x = torch.randn(64, 256, device="cuda", dtype=torch.float64, generator=generator)
                (x @ weight).square().sum().backward()
                expected = 2 * x.T @ (x @ weight.detach())
                assert weight.grad is not None and torch.allclose(weight.grad, expected)

    in_threads(4, work)


@check
def a_model_trains_as_on_the_cpu() -> None:
    def train(device: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)).double()
        x, y = torch.randn(512, 64).double(), torch.randn(512, 1).double()
        model, x, y = model.to(device), x.to(device), y.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert torch.allclose(torch.tensor(train("cuda")), torch.tensor(train("cpu")), rtol=1e-6)


@check
def out_of_memory_is_pytorchs_error_and_all_goes_on_after_it() -> None:
    total = torch.cuda.mem_get_info()[1]
    kept = filled(64 * MIB, 7)
    for _ in range(3):
        try:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert str(error).startswith("CUDA out of memory"), str(error)
        else:
            raise AssertionError("twice the device's memory was handed out")
    assert_filled(kept, 7)
    del kept
    assert_filled(filled(64 * MIB, 8), 8)


@check
def a_full_device_serves_again_when_tensors_are_freed() -> None:
    memory.empty_cache()
    piece = torch.cuda.mem_get_info()[1] // 10
    pieces = []
    try:
        while len(pieces) < 11:
            pieces.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory"), str(error)
    assert 1 < len(pieces) < 11
    del pieces[::2]
    pieces.append(filled(piece, 3))
    assert_filled(pieces[-1], 3)
    pieces.clear()
    memory.empty_cache()


@check
def a_memory_fraction_limits_what_is_reserved() -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        assert abs(memory.get_per_process_memory_fraction() - 0.05) < 1e-6
        torch.empty(total // 10, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "allowed" in str(error), str(error)
    else:
        raise AssertionError("more than the fraction was handed out")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.empty(total // 10, dtype=torch.uint8, device="cuda").numel() == total // 10


@check
def emptying_the_cache_gives_memory_back() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = memory.memory_reserved()
    tensor = filled(200 * MIB, 1)
    assert memory.memory_reserved() >= before + 200 * MIB
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert memory.memory_reserved() == before
    allocator_of(0).inspection.check_invariants()


@check
def a_private_pool_keeps_its_memory_to_itself() -> None:
    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = filled(4 * MIB, 1)
    outside = filled(4 * MIB, 2)
    segments = pool.snapshot()
    addresses = [block["address"] for segment in segments for block in segment["blocks"]]
    assert inside.data_ptr() in addresses and outside.data_ptr() not in addresses
    assert pool.use_count() == 1
    del inside, pool
    assert memory.memory_snapshot() and not [s for s in memory.memory_snapshot() if s["segment_pool_id"] != (0, 0)]


@check
def a_snapshot_opens_in_pytorchs_own_tools() -> None:
    from torch.cuda import _memory_viz

    memory.record_history(max_entries=10_000)
    kept = [filled(size, 1) for size in SIZES]
    del kept[::2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        memory._dump_snapshot(path)
        snapshot = pickle.loads(path.read_bytes())
    memory.record_history(None)
    actions = {entry["action"] for entry in snapshot["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed"} <= actions
    assert "total_allocated" in _memory_viz.segsum(snapshot)
    assert _memory_viz.trace(snapshot)
    assert "<script" in _memory_viz.trace_plot(snapshot) and "<script" in _memory_viz.segment_plot(snapshot)


@check
def memory_is_handed_to_a_view_and_kept_until_the_last_is_gone() -> None:
    before = memory.memory_allocated()
    view = filled(8 * MIB, 9)[MIB : 2 * MIB]
    assert memory.memory_allocated() - before == 8 * MIB
    assert_filled(view, 9)
    del view
    assert memory.memory_allocated() == before


@check
def a_raw_allocation_goes_back_by_its_address() -> None:
    before = memory.memory_allocated()
    address = memory.caching_allocator_alloc(MIB)
    assert memory.memory_allocated() - before == MIB
    memory.caching_allocator_delete(address)
    assert memory.memory_allocated() == before
    try:
        memory.caching_allocator_delete(address)
    except RuntimeError:
        pass
    else:
        raise AssertionError("an address was freed twice")


@check
def convolutions_work_and_cudnns_search_is_off_where_names_are_patched() -> None:
    pictures, weights = torch.randn(4, 3, 32, 32), torch.randn(8, 3, 3, 3)
    expected = torch.nn.functional.conv2d(pictures, weights)

    def convolve() -> None:
        got = torch.nn.functional.conv2d(pictures.cuda(), weights.cuda()).cpu()
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)

    convolve()
    memory.patch()
    torch.backends.cudnn.benchmark = True
    convolve()
    memory.unpatch()
    torch.backends.cudnn.benchmark = True
    try:
        convolve()
    except RuntimeError as error:
        assert "cacheInfo" in str(error), error  # otherwise PyTorch answers by now, and the patch can be removed
    finally:
        torch.backends.cudnn.benchmark = False


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_checks()
