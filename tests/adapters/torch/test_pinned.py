"""PyTorch's pinned memory on ours, with the installed PyTorch, on a CUDA driver made of host memory."""

import pytest

from helpers.torch_on_host_memory import HELPERS, NEEDED

PROGRAMS = HELPERS.parent / "gpu" / "pinned_programs.py"

pytestmark = NEEDED

BEGIN = """
import os, sys, allotment, allotment.torch
allotment.torch.install(pinned={kind!r})
import torch
torch.cuda.init()
pin = lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True)
stats = torch.cuda.host_memory_stats
"""


@pytest.fixture
def pinned(run):
    def pinned(code, kind="torch", **settings):
        return run("-c", BEGIN.format(kind=kind) + code, **settings)

    return pinned


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_random_programs_get_the_results_of_pytorchs_own_pinned_memory(run, kind):
    assert run(PROGRAMS, "--programs", "2", "--steps", "150", "--kind", kind).count("equal") == 2


def test_one_large_request_pins_the_requested_bytes(pinned):
    printed = pinned("""
size = 41 * (1 << 20) + 12_345
tensor = pin(size)
print(stats()["allocated_bytes.current"] <= 1.01 * size, tensor.is_pinned())
""", "tight")  # fmt: skip
    assert printed.split() == ["True", "True"]


@pytest.mark.parametrize("least, most", [(1.0, 1.01), (0.1, 1.25)])
def test_batches_pin_what_is_needed_at_once_and_a_little_for_changing_sizes(pinned, least, most):
    printed = pinned(f"""
import random
draw, alive, needed = random.Random(1), [], 0
for _ in range(200):
    alive.append(pin(int((40 << 20) * draw.uniform({least}, 1.0))))
    needed = max(needed, sum(tensor.numel() for tensor in alive))
    if len(alive) > 5:
        del alive[0]
print(stats()["allocated_bytes.peak"] / needed)
""", "tight")  # fmt: skip
    assert float(printed) <= most


def test_tensors_pinned_before_stay_with_pytorchs_own(run):
    printed = run("-c", """
import torch, allotment.torch
before = torch.ones(1000).pin_memory()
allotment.torch.install(pinned="torch")
after = torch.ones(1000).pin_memory()
on_device = before.cuda(non_blocking=True)
print(torch.cuda.host_memory_stats()["active_requests.current"], float(on_device.cpu().sum()))
del before, after
torch._C._host_emptyCache()
print(torch.cuda.host_memory_stats()["allocations.current"])
""")  # fmt: skip
    assert printed.split() == ["1", "1000.0", "0"]


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_a_program_ends_well_with_pinned_tensors_alive_in_threads_and_modules(pinned, kind):
    printed = pinned("""
import threading
sys.kept = [pin(1000) for _ in range(3)]
def work():
    sys.kept.append(pin(5000))
    sys.kept[-1].cuda(non_blocking=True)
    local.kept = pin(100)
    ready.wait()
    threading.Event().wait()
local, ready = threading.local(), threading.Barrier(4)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
ready.wait()
sys.kept[0].cuda(non_blocking=True)
print("end")
""", kind)  # fmt: skip
    assert printed.split() == ["end"]


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_a_loader_with_workers_hands_out_right_batches(pinned, kind):
    printed = pinned("""
from torch.utils.data import DataLoader, TensorDataset
values = torch.arange(4000.0).reshape(400, 10)
loader = DataLoader(TensorDataset(values), batch_size=7, num_workers=2, pin_memory=True)
found = [batch.to("cuda", non_blocking=True) for batch, in loader]
print(bool((torch.cat([part.cpu() for part in found]) == values).all()), stats()["num_host_alloc"] > 0)
""", kind)  # fmt: skip
    assert printed.split() == ["True", "True"]


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_a_block_that_a_graph_copies_from_is_never_reused(pinned, kind):
    printed = pinned("""
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    target = torch.empty(8, device="cuda")
    used, plain = torch.ones(8).pin_memory(), torch.ones(8).pin_memory()
    target.copy_(used, non_blocking=True)
    places = used.data_ptr(), plain.data_ptr()
    del used, plain
    again = [torch.ones(8).pin_memory().data_ptr() for _ in range(2)]
print(places[0] in again, places[1] == again[0] == again[1])
others = [torch.ones(8).pin_memory() for _ in range(20)]
print(places[0] in [tensor.data_ptr() for tensor in others])
""", kind)  # fmt: skip
    assert printed.split() == ["False", "True", "False"]


CAPTURED_ELSEWHERE = """
torch.cuda.set_device(1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    target = torch.empty(8, device="cuda")
    used = torch.ones(8).pin_memory()
    target.copy_(used, non_blocking=True)
    place = used.data_ptr()
    del used
    again = [torch.ones(8).pin_memory().data_ptr() for _ in range(2)]
later = [torch.ones(8).pin_memory() for _ in range(20)]
print(place in again, place in [tensor.data_ptr() for tensor in later])
"""


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_nor_is_one_that_a_graph_of_another_device_copies_from(pinned, kind):
    printed = pinned("first = pin(1)" + CAPTURED_ELSEWHERE, kind, FAKE_CUDA_DEVICES="2")
    assert printed.split() == ["False", "False"]


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_graphs_captured_before_end_well(run, kind):
    printed = run("-c", f"""
import torch, allotment.torch
allotment.torch.install("deep")
before, around = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(before):
    torch.empty(8, device="cuda").zero_()
with torch.cuda.graph(around):
    torch.empty(8, device="cuda").zero_()
    allotment.torch.install(pinned={kind!r})
torch.ones(8).pin_memory()
after = torch.cuda.CUDAGraph()
with torch.cuda.graph(after, pool=before.pool()):
    torch.empty(8, device="cuda").zero_()
del after, before, around
print("end")
""")  # fmt: skip
    assert printed.split() == ["end"]


FAILING_FILTER = """
import ctypes, threading
ready, printed = threading.Event(), threading.Event()
def work():
    ready.wait()
    torch.zeros(1, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        destroyed = ctypes.CDLL("libcuda.so.1").cuStreamDestroy_v2(ctypes.c_void_p(stream.cuda_stream))
        try:
            pin(5)
        except RuntimeError as error:
            print(destroyed, str(error).splitlines()[0])
    printed.set()
threading.Thread(target=work, daemon=True).start()
with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
    torch.empty(8, device="cuda").zero_()
    ready.set()
    printed.wait(60)
print(pin(5).numel())
"""


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_an_error_of_pytorchs_code_inside_a_request_reaches_the_caller(pinned, kind):
    printed = pinned(FAILING_FILTER, kind)
    assert printed.splitlines() == ["0 CUDA error: failed", "5"]


def test_a_block_waits_for_a_stream_of_another_device(pinned):
    printed = pinned("""
tensor = pin(1000).fill_(7)
with torch.cuda.device(1):
    copied = tensor.to("cuda:1", non_blocking=True)
place = tensor.data_ptr()
del tensor
torch.cuda.synchronize(1)
again = [pin(1000) for _ in range(2)]
print(int(copied.cpu().sum()), place in [tensor.data_ptr() for tensor in again])
""", FAKE_CUDA_DEVICES="2")  # fmt: skip
    assert printed.split() == ["7000", "True"]


def test_settings_that_the_program_changes_are_followed(pinned):
    printed = pinned("""
mib = 1 << 20
set_to = torch.cuda.memory._set_allocator_settings
first = pin(3 * mib)
set_to("pinned_use_cuda_host_register:True,pinned_num_register_threads:2")
second = pin(9 * mib)
print(stats()["allocated_bytes.current"] // mib, second.is_pinned())
set_to("pinned_use_cuda_host_register:False")
del first, second
torch._C._host_emptyCache()
print(stats()["allocated_bytes.current"])
""")  # fmt: skip
    assert printed.split() == ["20", "True", "0"]


def test_without_a_compiler_pytorchs_own_stays_and_one_line_says_so(run, tmp_path):
    printed = run("-c", """
import sys, allotment.torch
from allotment.torch._deep import building
building.PACKAGED = building.HERE / "nowhere"
sys.stderr = sys.stdout
allotment.torch.install("hooks", pinned="tight")
import torch
torch.cuda.init()
print(torch.ones(10).pin_memory().is_pinned(), torch.cuda.host_memory_stats()["allocated_bytes.current"])
""", CXX="/nowhere/c++", XDG_CACHE_HOME=str(tmp_path), TMPDIR=str(tmp_path))  # fmt: skip
    said, answers = printed.splitlines()
    assert said.startswith("allotment: PyTorch's own allocator stays for pinned memory: ") and "/nowhere/c++" in said
    assert answers.split() == ["True", "64"]


def test_a_library_in_the_package_that_cannot_be_loaded_is_compiled_instead(run, tmp_path):
    printed = run("-c", f"""
from pathlib import Path
from allotment.torch._deep import building, deep
building.PACKAGED = Path({str(tmp_path)!r})
name = building.packaged_name(deep.torch_here(), building.TORCH_PINNED_ALLOCATOR)
(building.PACKAGED / name).write_bytes(b"for another machine")
""" + BEGIN.format(kind="tight") + "pin(41 << 20); print(stats()['allocated_bytes.current'] >> 20)")  # fmt: skip
    assert printed.split() == ["41"]


def test_it_is_chosen_once(pinned):
    printed = pinned("""
allotment.torch.install(pinned="torch")
for kind in ("tight", "tightest"):
    try:
        allotment.torch.install(pinned=kind)
    except allotment.errors.RequestError as error:
        print(error)
""")  # fmt: skip
    first, second = printed.splitlines()
    assert first == "pinned memory is installed already, as 'torch', which cannot change"
    assert second == "pinned must be 'torch' or 'tight', or None, not 'tightest'"


REFUSED = """
import sys, allotment.torch
sys.stderr = sys.stdout
try:
    allotment.torch.install("deep", pinned="tight")
except allotment.errors.SettingsError as error:
    print(error)
print(allotment.torch.installed_mode())
"""


@pytest.mark.parametrize(
    "variable, words, mode",
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "PyTorch's settings name pinned_use_background_threads, which has no", "deep"),
        ("ALLOTMENT_CONF", "pinned_use_background_threads has no meaning in the mode 'tight'", "None"),
    ],
)
def test_a_setting_without_a_meaning_is_ours_and_refused_or_pytorchs_and_not_used(run, variable, words, mode):
    printed = run("-c", REFUSED, **{variable: "pinned_use_background_threads:True"}).splitlines()
    assert words in printed[0]
    assert printed[-1] == mode


@pytest.mark.parametrize("kind", ["torch", "tight"])
def test_a_snapshot_shows_a_freed_block_that_a_graph_copies_from_as_freed(pinned, kind):
    printed = pinned("""
if not hasattr(torch.cuda.memory, "_annotate_tensor"):  # snapshots have pinned memory from PyTorch 2.14 on
    print("active_pending_free")
    sys.exit()
torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)
with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
    target = torch.empty(8, device="cuda")
    used = torch.ones(8).pin_memory()
    target.copy_(used, non_blocking=True)
    place = used.data_ptr()
    del used
segments = torch.cuda.memory._snapshot()["host_segments"]
print(*[block["state"] for segment in segments for block in segment["blocks"] if block["address"] == place])
""", kind)  # fmt: skip
    assert printed.split() == ["active_pending_free"]
