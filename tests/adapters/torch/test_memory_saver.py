"""`torch_memory_saver` is ours, with its names and meaning: with the installed PyTorch, on a driver of host memory."""

from pathlib import Path

import pytest

import allotment
from helpers.torch_on_host_memory import NEEDED

AS_PACKAGE = Path(allotment.__file__).parent / "torch" / "memory_saver" / "as_package"

pytestmark = NEEDED

BEGIN = """
import os, sys, threading
from torch_memory_saver import torch_memory_saver as saver
import torch, allotment, allotment.torch
from allotment.errors import PausedError, RequestError
MIB = 1 << 20
numbers = torch.arange(3 * MIB)

def ours():
    return allotment.current("cuda:0")

def zeros(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")

def reserved():
    return ours().stats()["reserved_bytes.all.current"] // MIB
"""


@pytest.fixture(params=["hooks", "deep"])
def program(request, run, tmp_path):
    """Return what a program that imports torch_memory_saver prints, in one mode."""

    def program(code, **variables):
        script = tmp_path / "program.py"
        script.write_text(BEGIN + code)
        start = f"import sys; sys.path.insert(0, {str(AS_PACKAGE)!r}); exec(open({str(script)!r}).read())"
        return run("-c", start, ALLOTMENT_TORCH_MODE=request.param, **variables).split("\n")[:-1]

    return program


def test_the_name_is_ours_here_and_in_processes_that_are_started(program):
    found = program("""
import subprocess, torch_memory_saver
print(torch_memory_saver.__name__, torch_memory_saver.TorchMemorySaver is type(saver), saver.enabled)
child = "import torch_memory_saver as it, allotment.torch; print(it.__name__, allotment.torch.installed_mode())"
printed = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
print(printed.stdout.strip() == f"allotment.torch.memory_saver {allotment.torch.installed_mode()}", printed.stderr)
with torch_memory_saver.configure_subprocess():
    print(os.environ["PYTHONPATH"].count("as_package"))
from torch_memory_saver.utils import change_env
from torch_memory_saver.testing_utils import get_device
""")  # fmt: skip
    assert found == ["allotment.torch.memory_saver True True", "True ", "1"]


def test_what_has_a_backup_comes_back_and_what_has_none_is_only_mapped_again(program):
    found = program("""
with saver.region("weights", enable_cpu_backup=True):
    weights = numbers.cuda()
with saver.region("cache"):
    cache = zeros(30)
addresses = weights.data_ptr(), cache.data_ptr()
before = reserved()
saver.pause("weights")
print(reserved() < before, sorted(ours().paused()))
saver.pause()
print(reserved(), saver.get_cpu_backup(cache), torch.equal(saver.get_cpu_backup(weights), numbers))
saver.resume("weights")
print(torch.equal(weights.cpu(), numbers), sorted(ours().paused()), saver.get_cpu_backup(weights))
saver.resume()
cache.zero_()
print(ours().paused(), addresses == (weights.data_ptr(), cache.data_ptr()), reserved() == before)
ours().inspection.check_invariants()
""")  # fmt: skip
    assert found == [
        "True ['torch_memory_saver/host/weights']",
        "0 None True",
        "True ['torch_memory_saver/nothing/cache'] None",
        "set() True True",
    ]


def test_regions_of_one_tag_with_different_backups_sleep_and_wake_together(program):
    found = program("""
with saver.region("model", enable_cpu_backup=True):
    kept = numbers.cuda()
with saver.region("model"):
    lost = zeros(4)
with saver.region("model", enable_disk_backup=True):
    stored = numbers.cuda() + 0
saver.set_disk_backup_dir("on disk")
stored.copy_(numbers)
saver.pause("model")
print(len(ours().paused()), reserved(), saver.get_cpu_backup(stored), os.path.isdir("on disk"))
saver.resume("model")
print(ours().paused(), torch.equal(kept.cpu(), numbers), torch.equal(stored.cpu(), numbers), os.listdir("on disk"))
os.rmdir("on disk")
""")  # fmt: skip
    assert found == ["3 0 None True", "set() True True []"]


def test_a_tensor_belongs_to_the_innermost_region_and_disable_leaves_them_all(program):
    found = program("""
with saver.region("outer"):
    first = zeros(4)
    with saver.region("inner"):
        second = zeros(4)
        with saver.disable():
            apart, gone = zeros(30), zeros(300)
            with saver.region("inside"):
                third = zeros(4)
            del gone
            peak = reserved()
        print(peak - reserved() >= 300)
        fourth = zeros(4)
    fifth = zeros(4)
tags = ours().sleep.tags()
print({name.rpartition("/")[2]: figures["reserved_bytes"] // MIB for name, figures in sorted(tags.items())})
saver.pause()
apart.zero_()
print(len(ours().paused()), reserved())
saver.resume()
""")  # fmt: skip
    assert found == ["True", "{'inner': 20, 'inside': 20, 'outer': 20, 'outside': 40}", "3 40"]


def test_calls_that_have_nothing_to_do_do_nothing(program):
    found = program("""
saver.pause(), saver.resume(), saver.pause("unheard of"), saver.resume("unheard of")
with saver.region("empty", enable_cpu_backup=True):
    pass
with saver.region("gone", enable_cpu_backup=True):
    zeros(4)
torch.cuda.empty_cache()
saver.pause("empty"), saver.pause("gone"), saver.resume("gone")
with saver.region("empty", enable_cpu_backup=True):
    tensor = numbers.cuda()
saver.pause(), saver.pause(), saver.pause("empty")
saver.resume(), saver.resume()
print(torch.equal(tensor.cpu(), numbers), ours().paused())
""")  # fmt: skip
    assert found == ["True set()"]


def test_memory_is_freed_while_it_sleeps_and_none_is_requested(program):
    found = program("""
with saver.region("weights", enable_cpu_backup=True):
    first, second = numbers.cuda(), numbers.cuda()
saver.pause()
del first
try:
    with saver.region("weights", enable_cpu_backup=True):
        zeros(1)
except RuntimeError as error:
    print("is paused" in str(error) and "resume it first" in str(error))
saver.resume()
print(torch.equal(second.cpu(), numbers))
with saver.region("weights", enable_cpu_backup=True):
    zeros(1)
del second
torch.cuda.empty_cache()
print(reserved())
""")  # fmt: skip
    assert found == ["True", "True", "0"]


def test_the_host_copy_is_retained_if_that_is_set_at_the_resume(program):
    found = program("""
print(saver.retain_cpu_backup)
with saver.region("weights", enable_cpu_backup=True):
    weights = numbers.cuda()
saver.pause()
first = saver.get_cpu_backup(weights, zero_copy=True).data_ptr()
saver.retain_cpu_backup = True
saver.resume()
print(saver.get_cpu_backup(weights, zero_copy=True).data_ptr() == first)
weights.copy_(numbers * 2)
saver.pause()
print(saver.get_cpu_backup(weights, zero_copy=True).data_ptr() == first)
print(torch.equal(saver.get_cpu_backup(weights), numbers * 2))
saver.retain_cpu_backup = False
saver.resume()
print(saver.get_cpu_backup(weights), torch.equal(weights.cpu(), numbers * 2))
""")  # fmt: skip
    assert found == ["False", "True", "True", "True", "None True"]


def test_a_retained_host_copy_goes_with_the_last_memory_of_its_region(program):
    found = program("""
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB

saver.retain_cpu_backup = True
with saver.region("weights", enable_cpu_backup=True):
    weights = zeros(200)
saver.pause(), saver.resume()
before = resident()
del weights
torch.cuda.empty_cache()
print(before - resident() > 380)  # the device is the host too
""")  # fmt: skip
    assert found == ["True"]


def test_memory_of_a_capture_sleeps_with_its_tag_and_the_graph_replays_after(program):
    found = program("""
with saver.region("static", enable_cpu_backup=True):
    source = numbers.cuda()
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
    target = torch.empty_like(source)
    target.copy_(source)
figures = {name: figures["reserved_bytes"] // MIB for name, figures in ours().sleep.tags().items()}
before = reserved()
saver.pause("graph")
print(before - reserved() == figures["torch_memory_saver/host/graph"] >= 24, ours().paused())
saver.resume("graph")
source.copy_(numbers * 3)
graph.replay()
print(torch.equal(target.cpu(), numbers * 3), ours().paused())
""")  # fmt: skip
    assert found == ["True {'torch_memory_saver/host/graph'}", "True set()"]


def test_a_graph_that_is_captured_while_its_tag_sleeps_is_released_by_the_next_pause(program):
    found = program("""
with saver.region("graphs", enable_cpu_backup=True):
    first = numbers.cuda()
saver.pause()
graph = torch.cuda.CUDAGraph()
source = numbers.cuda()
with saver.cuda_graph(graph, tag="graphs", enable_cpu_backup=True):
    target = torch.empty_like(source)
    target.copy_(source)
before = reserved()
saver.pause("graphs")
print(before - reserved() >= 24, ours().paused())
saver.resume()
graph.replay()
print(torch.equal(target.cpu(), numbers), torch.equal(first.cpu(), numbers))
""")  # fmt: skip
    assert found == ["True {'torch_memory_saver/host/graphs'}", "True True"]


def test_the_variables_put_all_memory_of_all_threads_into_the_default_tag(program):
    found = program("""
weights = numbers.cuda()
with saver.region("grads"):
    grads = zeros(4)
held = []
thread = threading.Thread(target=lambda: held.append(zeros(50)))
thread.start(), thread.join()
functions = saver._impl._binary_wrapper.cdll
print(functions.tms_get_current_tag(), functions.tms_get_enable_cpu_backup(), functions.tms_get_interesting_region())
print(functions.tms_get_cpu_backup_backend(), saver.retain_cpu_backup)
with saver.disable():
    apart = zeros(4)
print(sorted(ours().sleep.tags()))
saver.pause()
print(reserved())
saver.resume()
print(torch.equal(weights.cpu(), numbers))
""", TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1", TMS_INIT_CPU_BACKUP_BACKEND="mmap",
    TMS_RETAIN_CPU_BACKUP="1")  # fmt: skip
    names = ["torch_memory_saver/host/default", "torch_memory_saver/nothing/grads", "torch_memory_saver/outside"]
    assert found == ["b'default' True True", "b'mmap' True", str(names), "20", "True"]


def test_what_means_nothing_is_refused_with_the_value(program):
    found = program("""
def refused(function):
    try:
        function()
    except RequestError as error:
        return str(error)

def enter(**options):
    with saver.region(**options):
        pass

def leave():
    with saver.disable():
        pass

def choose(mode):
    saver.hook_mode = mode

print(refused(lambda: enter(cpu_backup_backend="mmap")))
print(refused(lambda: enter(enable_cpu_backup=True, cpu_backup_backend="tape")))
print(refused(lambda: enter(enable_cpu_backup=True, enable_disk_backup=True)))
print(refused(leave))
print(refused(lambda: choose("magic")))
print(refused(lambda: saver.get_cpu_backup(torch.zeros(3))))
choose("torch"), choose("preload")
for name in ("hook_mode", "memory_margin_bytes"):
    try:
        getattr(saver, name)
    except (AttributeError, NotImplementedError) as error:
        print(error)
""")  # fmt: skip
    assert found == [
        "cpu_backup_backend='mmap' requires enable_cpu_backup=True",
        "cpu_backup_backend must be 'pinned' or 'mmap', not 'tape'",
        "enable_cpu_backup and enable_disk_backup are mutually exclusive: choose one",
        "disable() is for code inside a region, and this thread is outside; TMS_INIT_ENABLE=1 puts all threads inside",
        "hook_mode must be 'preload' or 'torch', not 'magic'",
        "get_cpu_backup needs a contiguous tensor on a GPU; this one is on cpu, of shape (3,) and strides (1,)",
        "hook_mode can only be set",
        "memory_margin_bytes can only be set",
    ]


def test_a_margin_is_left_to_others(program):
    found = program("""
zeros(4)
saver.memory_margin_bytes = torch.cuda.mem_get_info()[0] - 100 * MIB
held = zeros(60)
for size in (300, 90):
    try:
        with saver.region("cache"):
            cache = zeros(size)
    except torch.OutOfMemoryError:
        print("out of memory")
saver.memory_margin_bytes = 0
cache = zeros(300)
print("none")
ours().limit = 500 * MIB
saver.memory_margin_bytes = MIB
saver.pause(), saver.resume()
print(ours().limit // MIB)
saver.memory_margin_bytes = torch.cuda.mem_get_info()[0]
print(ours().limit // MIB < 500)
saver.memory_margin_bytes = 0
print(ours().limit // MIB)
""")  # fmt: skip
    assert found == ["out of memory", "out of memory", "none", "500", "True", "500"]


def test_expandable_segments_and_dense_placement_stay_on(program):
    for settings in ("expandable_segments:True", "placement:dense"):
        found = program("""
others = numbers.cuda()
with saver.region("weights", enable_cpu_backup=True):
    weights = numbers.cuda()
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph"):
    target = torch.empty_like(weights)
    target.copy_(weights)
saver.pause()
print(len(ours().paused()))
saver.resume()
graph.replay()
print(torch.equal(weights.cpu(), numbers), torch.equal(target.cpu(), numbers), torch.equal(others.cpu(), numbers))
""", **{"PYTORCH_CUDA_ALLOC_CONF" if "expand" in settings else "ALLOTMENT_CONF": settings})  # fmt: skip
        assert found == ["2", "True True True"]


def test_a_program_is_run_with_the_option(run, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import torch_memory_saver, sys; print(torch_memory_saver.__name__, sys.argv[1:])")
    for mode in ("hooks", "deep"):
        printed = run("-m", "allotment.torch", "--mode", mode, "--memory-saver", str(script), "argument")
        assert printed.split("\n")[-2] == "allotment.torch.memory_saver ['argument']"


def test_it_is_too_late_once_pytorch_has_memory_of_its_own(run):
    printed = run("-c", """
import torch
held = torch.empty(1000, device="cuda")
from allotment.torch.memory_saver import TorchMemorySaver
try:
    with TorchMemorySaver().region():
        pass
except Exception as error:
    print(type(error).__name__, error)
""")  # fmt: skip
    assert printed.startswith("RequestError") and "allotment.torch.install()" in printed, printed
