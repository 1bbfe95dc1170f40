"""Every function of torch.cuda.memory, called natively and under our allocator: which return, which raise, which agree.

    python tests/gpu/torch_functions.py [--out FILE.json] [--markdown FILE.md]

Four processes do the same work and then call the functions in the same order, so that figures can be compared: with
PyTorch's own allocator; with ours installed, PyTorch's own functions; the same, those of `allotment.torch.memory`; with
ours installed and its functions under PyTorch's names. The functions are taken from the module itself, so no new one is
overlooked: the run exits with 1 if a function has no call here, or if a public function returns natively and raises in
one of the last two processes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
NATIVE, INSTALLED, MIRROR, PATCHED = MODES = ("native", "installed", "mirror", "patched")
WORKER = "--worker"
NOT_COMPARED = {"addr", "address", "time_us", "frames", "stream", "device_free", "pool_id", "tenant"}


# What is called. Each is given the module that it is called in, so that ours can stand for PyTorch's.


def call_raw(memory: Any) -> Any:
    address = memory.caching_allocator_alloc(MIB)
    memory.caching_allocator_delete(address)
    return address > 0


def call_fraction(memory: Any) -> Any:
    before = memory.get_per_process_memory_fraction()
    memory.set_per_process_memory_fraction(0.5)
    during = memory.get_per_process_memory_fraction()
    memory.set_per_process_memory_fraction(1.0)
    return before, round(during, 6)


def call_pool(memory: Any) -> Any:
    pool = memory.MemPool()
    return pool.use_count(), pool.snapshot()


def call_use_pool(memory: Any) -> Any:
    import torch

    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        tensor = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        return pool.use_count(), len(pool.snapshot()), tensor.numel()


def call_history(memory: Any) -> Any:
    import torch

    memory._record_memory_history(max_entries=100, context=None)
    torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    actions = [entry["action"] for entry in memory._snapshot()["device_traces"][0]]
    memory._record_memory_history(None)
    return actions


def call_legacy_history(memory: Any) -> Any:
    memory._record_memory_history(True)
    memory._record_memory_history(False)


def call_metadata(memory: Any) -> Any:
    memory._set_memory_metadata("here")
    reported = memory._get_memory_metadata()
    memory._set_memory_metadata("")
    return reported


def to_a_file(call: Callable[[Any, str], object]) -> Callable[[Any], Any]:
    def written(memory: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            call(memory, str(path))
            return path.stat().st_size > 0

    return written


def call_caching(memory: Any) -> Any:
    import torch

    memory.caching_allocator_enable(False)
    before = torch.cuda.mem_get_info()[0]
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    after = torch.cuda.mem_get_info()[0]
    memory.caching_allocator_enable(True)
    return "the device has it back" if before == after else "the cache keeps it"


def call_swap(memory: Any) -> Any:
    from torch.cuda.memory import _get_current_allocator

    memory.change_current_allocator(_get_current_allocator())


def call_mutex(memory: Any) -> Any:
    with memory._free_mutex():
        return "held"


def plain(name: str, *arguments: Any) -> Callable[[Any], Any]:
    return lambda memory: getattr(memory, name)(*arguments)


CALLS: dict[str, Callable[[Any], Any]] = {
    "CUDAPluggableAllocator": plain("CUDAPluggableAllocator", "/no/such/library.so", "allocate", "free"),
    "MemPool": call_pool,
    "caching_allocator_alloc": call_raw,
    "caching_allocator_delete": call_raw,
    "caching_allocator_enable": call_caching,
    "change_current_allocator": call_swap,
    "empty_cache": plain("empty_cache"),
    "get_allocator_backend": plain("get_allocator_backend"),
    "get_per_process_memory_fraction": call_fraction,
    "host_memory_stats": lambda memory: list(memory.host_memory_stats()),
    "host_memory_stats_as_nested_dict": lambda memory: list(memory.host_memory_stats_as_nested_dict()),
    "list_gpu_processes": lambda memory: type(memory.list_gpu_processes()).__name__,
    "max_memory_allocated": plain("max_memory_allocated"),
    "max_memory_cached": plain("max_memory_cached"),
    "max_memory_reserved": plain("max_memory_reserved"),
    "mem_get_info": lambda memory: memory.mem_get_info()[1],
    "memory_allocated": plain("memory_allocated", "cuda"),
    "memory_cached": plain("memory_cached"),
    "memory_reserved": plain("memory_reserved", 0),
    "memory_snapshot": plain("memory_snapshot"),
    "memory_stats": plain("memory_stats"),
    "memory_stats_as_nested_dict": plain("memory_stats_as_nested_dict"),
    "memory_summary": plain("memory_summary"),
    "reset_accumulated_host_memory_stats": plain("reset_accumulated_host_memory_stats"),
    "reset_accumulated_memory_stats": plain("reset_accumulated_memory_stats"),
    "reset_max_memory_allocated": plain("reset_max_memory_allocated"),
    "reset_max_memory_cached": plain("reset_max_memory_cached"),
    "reset_peak_host_memory_stats": plain("reset_peak_host_memory_stats"),
    "reset_peak_memory_stats": plain("reset_peak_memory_stats"),
    "set_per_process_memory_fraction": call_fraction,
    "use_mem_pool": call_use_pool,
    # Private functions that guides and tools call.
    "_dump_snapshot": to_a_file(lambda memory, path: memory._dump_snapshot(path)),
    "_free_mutex": call_mutex,
    "_get_current_allocator": lambda memory: type(memory._get_current_allocator()).__name__,
    "_get_memory_metadata": call_metadata,
    "_host_allocator": lambda memory: type(memory._host_allocator()).__name__,
    "_record_memory_history": call_history,
    "_record_memory_history_impl": lambda memory: memory._record_memory_history_impl(None),
    "_record_memory_history_legacy": call_legacy_history,
    "_save_memory_usage": to_a_file(lambda memory, path: memory._save_memory_usage(path)),
    "_save_segment_usage": to_a_file(lambda memory, path: memory._save_segment_usage(path)),
    "_set_allocator_settings": plain("_set_allocator_settings", ""),
    "_set_memory_metadata": call_metadata,
    "_snapshot": lambda memory: sorted(memory._snapshot()),
}


def functions_of(module: Any) -> list[str]:
    """Return the public names, and every function that the module defines."""
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name.startswith("_")
    ]
    return sorted(module.__all__) + sorted(own)


# Other code that uses PyTorch's allocator for more than memory.


def accelerator_figures() -> Any:
    import torch

    return torch.accelerator.memory_allocated(), len(torch.accelerator.memory_stats())


def accelerator_reset() -> Any:
    import torch

    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()


def searching_for_the_fastest_convolution() -> Any:
    import torch

    torch.backends.cudnn.benchmark = True
    try:
        image, kernel = torch.randn(4, 8, 32, 32, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
        return tuple(torch.nn.functional.conv2d(image, kernel).shape)
    finally:
        torch.backends.cudnn.benchmark = False


def sharing_a_tensor_with_another_process() -> Any:
    import torch

    return len(torch.empty(MIB, device="cuda").untyped_storage()._share_cuda_())


def checkpoint_of_a_pool() -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1_000, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    return y.numel(), type(state).__name__


def live_allocations_of_a_pool() -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1_000, device="cuda")
    with torch.cuda.graph(graph):
        y = x + 1
    return torch._C._cuda_checkPoolLiveAllocations(0, graph.pool(), {y.untyped_storage().data_ptr()})


OTHERS: dict[str, Callable[[], Any]] = {
    "torch.accelerator.memory_stats": accelerator_figures,
    "torch.accelerator.reset_peak_memory_stats": accelerator_reset,
    "convolution with cudnn.benchmark": searching_for_the_fastest_convolution,
    "sharing a tensor with another process": sharing_a_tensor_with_another_process,
    "torch._C._cuda_checkPoolLiveAllocations": live_allocations_of_a_pool,
    "torch._C._cuda_getCheckpointState": checkpoint_of_a_pool,
}


# One process.


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        result = call()
    except Exception as error:
        text = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {text[0] if text else ''}"}
    return {"result": comparable(result), "form": form_of(result)}


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): comparable(each) for key, each in value.items() if key not in NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def form_of(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, str) and ("\n" in value or len(value) > 40):
        return f"text of {len(value)} characters"
    return repr(value)


def some_work() -> list[Any]:
    import torch

    kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 5_000, MIB, 3 * MIB, 30 * MIB)]
    torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    return kept


def work(mode: str) -> None:
    warnings.simplefilter("ignore")
    if mode != NATIVE:
        from allotment.torch._install import install

        install("hooks", settings="", patch=mode == PATCHED)
    import torch

    torch.cuda.init()
    kept = some_work()
    module = torch.cuda.memory
    names = functions_of(module)
    if mode == MIRROR:
        from allotment.torch import memory as module
    reported = {
        "names": names,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "functions": {name: outcome(lambda call=CALLS[name]: call(module)) for name in names if name in CALLS},
        "others": {name: outcome(call) for name, call in OTHERS.items()},
    }
    assert len(kept) == 5
    print(json.dumps(reported))


def run(mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, WORKER, mode],
        env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"the {mode} process ended with {done.returncode}:\n{done.stderr[-4000:]}")
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reported


# The table.


def cell(native: dict[str, Any], other: dict[str, Any] | None) -> str:
    if other is None:
        return "-"
    if "error" in other:
        return "as native" if native == other else f"raises {shortened(other['error'])}"
    if "error" in native:
        return other["form"]
    return "equal" if native["result"] == other["result"] else f"other: {other['form']}"


def shortened(text: str) -> str:
    return (text if len(text) <= 90 else text[:87] + "...").replace("|", "\\|")


def table(reported: dict[str, dict[str, Any]]) -> str:
    rows = ["| function | native | under the adapter | `allotment.torch.memory` | patched |", "|---|---|---|---|---|"]
    for name in reported[NATIVE]["names"]:
        if name not in CALLS:
            rows.append(f"| `{name}` | not called: nothing is written for it | | | |")
            continue
        native = reported[NATIVE]["functions"][name]
        own = f"raises {shortened(native['error'])}" if "error" in native else shortened(native["form"])
        others = [reported[mode]["functions"][name] for mode in (INSTALLED, MIRROR, PATCHED)]
        rows.append(f"| `{name}` | {own} | " + " | ".join(cell(native, other) for other in others) + " |")
    rows += ["", "| what else asks the allocator | native | under the adapter | patched |", "|---|---|---|---|"]
    for name in OTHERS:
        native = reported[NATIVE]["others"][name]
        own = f"raises {shortened(native['error'])}" if "error" in native else shortened(native["form"])
        others = [reported[mode]["others"][name] for mode in (INSTALLED, PATCHED)]
        rows.append(f"| {name} | {own} | " + " | ".join(cell(native, other) for other in others) + " |")
    return "\n".join(rows)


def missed(reported: dict[str, dict[str, Any]]) -> list[str]:
    found = [f"{name}: nothing is written for it" for name in reported[NATIVE]["names"] if name not in CALLS]
    for name, native in reported[NATIVE]["functions"].items():
        for mode in (MIRROR, PATCHED):
            other = reported[mode]["functions"][name]
            if "error" in other and "error" not in native and not name.startswith("_"):
                found.append(f"{name}, {mode}: {other['error']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument(WORKER, choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0
    reported = {mode: run(mode) for mode in MODES}
    text = table(reported)
    print(f"{reported[NATIVE]['gpu']}, PyTorch {reported[NATIVE]['torch']}\n\n{text}\n")
    for path, content in ((options.out, json.dumps(reported, indent=1)), (options.markdown, text)):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
    problems = missed(reported)
    for problem in problems:
        print(problem)
    print(f"{len(reported[NATIVE]['names'])} functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
