"""Deep mode with the installed PyTorch, on a CUDA driver and runtime made of host memory."""

import subprocess

import pytest

from helpers.torch_on_host_memory import HELPERS, NEEDED

PROGRAMS = HELPERS.parent / "gpu" / "deep_programs.py"

pytestmark = NEEDED


BEGIN = """
import allotment, allotment.torch
allotment.torch.install({arguments})
import torch
"""


@pytest.fixture
def deep(run):
    def deep(code, arguments='"deep"', **settings):
        return run("-c", BEGIN.format(arguments=arguments) + code, **settings)

    return deep


@pytest.mark.parametrize("settings", ["", "max_split_size_mb:64,garbage_collection_threshold:0.6"])
def test_random_programs_get_the_results_of_pytorchs_own_allocator(run, settings):
    assert run(PROGRAMS, "--programs", "2", "--steps", "150", "--settings", settings).count("equal") == 2


def test_it_is_the_native_allocator_to_pytorch_and_ours_to_us(deep):
    printed = deep("""
tensor = torch.empty(1000, device="cuda")
print(torch.cuda.get_allocator_backend(), allotment.torch.installed_mode())
print(allotment.current("cuda:0").tenants()["torch"]["blocks"])
""")  # fmt: skip
    assert printed.split() == ["native", "deep", "1"]


def test_out_of_memory_is_pytorchs_error_with_its_observers_a_thousand_times(deep):
    printed = deep("""
seen = []
torch.cuda.init()
torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts))
for _ in range(1000):
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory. Tried to allocate 1024.00 GiB" in str(error)
print(len(seen), seen[0][:2], torch.cuda.memory_stats()["num_ooms"], torch.cuda.memory_allocated())
""")  # fmt: skip
    assert printed.strip() == "1000 (0, 1099511627776) 1000 0"


def test_a_snapshot_says_which_placement_it_is_of(deep):
    printed = deep("""
text = lambda: torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
torch.empty(1000, device="cuda")
print(text())
torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.9")
print(text())
""", '"deep", settings="placement:dense,dense_grain:32"')  # fmt: skip
    ours = "placement:dense,dense_grain:32"
    assert printed.split() == [ours, f"{ours},garbage_collection_threshold:0.9"]


def test_dense_placement_is_one_switch_and_says_what_becomes_of_expandable_segments(deep):
    printed = deep("""
torch.empty(1000, device="cuda")
print(allotment.current("cuda:0").settings.placement, allotment.current("cuda:0").settings.expandable_segments)
allotment.torch.install(dense=True)
""", '"deep", dense=True', PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", PYTHONWARNINGS="ignore")  # fmt: skip
    assert printed.split() == ["dense", "False"]


def test_a_history_has_the_contexts_that_pytorch_gathers(deep):
    printed = deep("""
torch.cuda.memory._record_memory_history(stacks="all")
def here():
    return torch.empty(1000, device="cuda")
tensor = here()
entry = torch.cuda.memory._snapshot()["device_traces"][0][-1]
names = [frame["name"] for frame in entry["frames"]]
print("here" in names, any("at::" in name for name in names))
ours = allotment.current("cuda:0").snapshot()["device_traces"][0]
print([frame["name"] for frame in [e for e in ours if e["action"] == "alloc"][-1]["frames"]] == names)
""")  # fmt: skip
    assert printed.split() == ["True", "True", "True"]


def test_contexts_without_references_are_dropped(deep):
    printed = deep("""
from allotment.torch._deep import deep
torch.cuda.memory._record_memory_history(stacks="python", max_entries=10)
for _ in range(200_000):
    torch.empty(1000, device="cuda")
contexts = deep.load(insist=True).allotment_torch_allocator_contexts()
print(contexts < 140_000, len(torch.cuda.memory._snapshot()["device_traces"][0]))
""")  # fmt: skip
    assert printed.split() == ["True", "10"]


def test_it_can_be_installed_late_while_nothing_is_allocated(run):
    printed = run("-c", """
import torch, allotment.torch
torch.cuda.init()
torch.cuda.set_per_process_memory_fraction(0.5)
allotment.torch.install("deep")
print(torch.cuda.get_per_process_memory_fraction(), torch.empty(10, device="cuda").numel())
""")  # fmt: skip
    assert printed.split() == ["0.5", "10"]


def test_too_late_it_says_why_and_what_to_do(run):
    printed = run("-c", """
import torch, allotment.torch
tensor = torch.empty(10, device="cuda")
try:
    allotment.torch.install("deep")
except allotment.errors.RequestError as error:
    print(error)
""")  # fmt: skip
    assert "2097152 bytes of device 0 are reserved" in printed and "right after importing torch" in printed


SEGMENTS = """
#include <stdlib.h>
int held;
void* take(size_t size, int device, void* stream) { ++held; return aligned_alloc(2 << 20, size); }
void give(void* address, size_t size, int device, void* stream) { --held; free(address); }
"""


def test_a_pool_takes_its_segments_from_an_allocator_of_its_own(deep, tmp_path):
    library = tmp_path / "segments.so"
    flags = ["-x", "c", "-shared", "-fPIC", "-o", str(library), "-"]
    subprocess.run(["cc", *flags], input=SEGMENTS, text=True, check=True)
    printed = deep(f"""
import ctypes
path = {str(library)!r}
held = ctypes.c_int.in_dll(ctypes.CDLL(path), "held")
pool = torch.cuda.MemPool(torch.cuda.memory.CUDAPluggableAllocator(path, "take", "give").allocator())
with torch.cuda.use_mem_pool(pool):
    tensors = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
print(len(pool.snapshot()), pool.use_count(), held.value)
del tensors, pool
print(held.value)
""")  # fmt: skip
    assert printed.split() == ["2", "1", "2", "0"]


def test_settings_come_from_pytorchs_variables_from_ours_and_from_pytorchs_function(deep):
    printed = deep("""
tensor = torch.empty(10, device="cuda")
found = allotment.current("cuda:0").settings
print(found.max_split_size >> 20, found.garbage_collection_threshold, found.roundup_power2_divisions[0])
torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.7")
print(allotment.current("cuda:0").settings.garbage_collection_threshold)
""", arguments='"deep", settings="garbage_collection_threshold:0.5"',
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64", ALLOTMENT_CONF="roundup_power2_divisions:4")  # fmt: skip
    assert printed.split() == ["64", "0.5", "4", "0.7"]


SENDING = """
import sys


def install(mode):
    if mode != "native":
        import allotment.torch

        allotment.torch.install(mode)


def receive(tensors, answers, mode):
    install(mode)
    tensor = tensors.get()
    answers.put(tensor[:5].cpu().tolist())


if __name__ == "__main__":
    install(sys.argv[1])
    import torch

    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    sent = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    sent[:5].copy_(torch.tensor([1, 2, 3, 4, 5], dtype=torch.uint8))
    torch.cuda.synchronize()
    process = context.Process(target=receive, args=(tensors, answers, sys.argv[2]))
    process.start()
    tensors.put(sent)
    print(answers.get(timeout=60))
    process.join()
    torch.cuda.ipc_collect()
"""


@pytest.mark.parametrize("modes", [("deep", "native"), ("native", "deep")])
def test_a_tensor_is_sent_to_a_process_with_the_other_allocator(run, tmp_path, modes):
    (tmp_path / "sending.py").write_text(SENDING)
    assert run(tmp_path / "sending.py", *modes).strip() == "[1, 2, 3, 4, 5]"


COUNTING = """
from allotment import errors
made = []
before = errors.AddressError.__init__
errors.AddressError.__init__ = lambda self, *facts: (made.append(facts), before(self, *facts))[1]
"""


def test_memory_of_any_device_is_freed_from_any_device_without_an_exception(deep):
    printed = deep(COUNTING + """
for current in (0, 1):
    torch.cuda.set_device(current)
    for device in ("cuda:0", "cuda:1"):
        for _ in range(10):
            torch.empty(1000, device=device)
print([torch.cuda.memory_allocated(device) for device in (0, 1)], len(made))
""", FAKE_CUDA_DEVICES="2")  # fmt: skip
    assert printed.strip() == "[0, 0] 0"


@pytest.mark.parametrize("devices", ["1", "2"])
def test_an_address_that_no_device_knows_is_refused_as_by_pytorch(deep, devices):
    printed = deep(COUNTING + """
last = torch.cuda.device_count() - 1
blocks = [torch.empty(1000, device=f"cuda:{device}") for device in range(last + 1)]
torch.cuda.set_device(last)
address = torch.cuda.caching_allocator_alloc(1 << 20)
torch.cuda.set_device(0)
torch.cuda.caching_allocator_delete(address)
print(torch.cuda.memory_allocated(last))
for wrong in (address, 0x1234, blocks[last].data_ptr() + 512):
    try:
        torch.cuda.caching_allocator_delete(wrong)
    except RuntimeError as error:
        print(str(error) == f"invalid device pointer: {wrong:#x}", type(error).__name__, len(made))
""", FAKE_CUDA_DEVICES=devices)  # fmt: skip
    assert printed.splitlines() == ["4096"] + 3 * ["True RuntimeError 0"]
