"""A check of deep mode with a release of PyTorch that it has not been proven with on a GPU.

Two child processes run the same short program, one with PyTorch's own allocator and one in deep mode. What PyTorch
reports in them must be equal, key by key. The verdict is stored with the compiled libraries, so the check runs once for
each version of Allotment.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allotment.torch._deep.building import (
    PACKAGED,
    CannotBuild,
    Folder,
    Library,
    Say,
    TorchFacts,
    folders,
    kept_name,
    one_process_at_a_time,
)
from allotment.torch._deep.comparing import Places, difference, in_settled_order

RUNNING = "ALLOTMENT_SELF_CHECK"
"""An environment variable of the children. With it, `install` does nothing, in case a startup file calls it."""
SETTINGS = (
    "ALLOTMENT_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)  # fmt: skip
MODES = ("native", "deep")
LIMIT_SECONDS = 300
PASSED = "passed"
CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from allotment.torch._deep.self_check import work
work(sys.argv[1])
"""
KIB, MIB = 1 << 10, 1 << 20


class CannotCheck(Exception):
    """The check was inconclusive, so there is no verdict to store."""


def expect_equal(torch: TorchFacts, built: Library, say: Say, has_gpu: Callable[[], bool] = lambda: True) -> None:
    """Raise CannotBuild unless the check passes, now or when it ran before. `has_gpu` is called if it has to run."""
    insist = "install(mode='deep') uses it anyway"
    try:
        verdict, where = _kept_or_new(torch, built, say, has_gpu)
    except CannotCheck as error:
        raise CannotBuild(f"deep mode with PyTorch {torch.version} could not be checked: {error}; {insist}") from error
    except OSError as error:
        raise CannotBuild(f"the verdict on deep mode cannot be stored: {error}; {insist}") from error
    if verdict != PASSED:
        raise CannotBuild(
            f"a check of deep mode with PyTorch {torch.version} failed: {verdict}; {insist}, and it is checked again if"
            f" {where} is removed"
        )


def _kept_or_new(torch: TorchFacts, built: Library, say: Say, has_gpu: Callable[[], bool]) -> tuple[str, Path]:
    """The verdict, and the file that holds it. Raises CannotCheck, OSError."""
    name = f"{kept_name(torch).removesuffix('.so')}.checked"
    # Beside the library, unless that came with the package or its folder cannot be written.
    places = list(dict.fromkeys([*([] if built.path.parent == PACKAGED else [built.path.parent]), *folders()]))
    for path in places:
        with contextlib.suppress(OSError), Folder(path) as folder:
            verdict = folder.text(name)
            if verdict is not None:
                return verdict, path / name
    if not has_gpu():
        raise CannotCheck("this process sees no GPU")
    problems = []
    for path in places:
        try:
            with Folder(path, create=True) as folder:
                return _check_and_keep(folder, name, torch, say), path / name
        except OSError as error:
            problems.append(str(error))
    raise OSError("; ".join(problems))


def _check_and_keep(folder: Folder, name: str, torch: TorchFacts, say: Say) -> str:
    with one_process_at_a_time(folder, f"{name}.lock", say, doing="checking deep mode"):
        verdict = folder.text(name)
        if verdict is None:
            say(f"deep mode has not been proven with PyTorch {torch.version}; comparing both allocators ...")
            verdict = run()
            folder.keep(name, verdict)
            if verdict == PASSED:
                say(f"the check passed: deep mode is used with PyTorch {torch.version}")
        return verdict


def run() -> str:
    """The verdict: PASSED, or what differs. Raises CannotCheck."""
    if not sys.executable:
        raise CannotCheck("this process does not know its Python executable")
    ends = _ends_of_both(at_once=True)
    if _verdict(ends) != PASSED and not all(isinstance(end, str) for end in ends.values()):
        # A GPU may admit one process at a time, or the driver returned addresses in another order in one of them.
        ends = _ends_of_both(at_once=False)
    if isinstance(ends["native"], str):
        raise CannotCheck(f"PyTorch's own allocator did not run the program: {ends['native']}")
    return _verdict(ends)


def _verdict(ends: dict[str, list[Any] | str]) -> str:
    if isinstance(ends["deep"], str):
        return f"the program does not run in deep mode: {ends['deep']}"
    return difference(ends["native"], ends["deep"]) or PASSED


def _ends_of_both(*, at_once: bool) -> dict[str, list[Any] | str]:
    """Run the program natively and in deep mode. Return a report of each, or a string that says how it failed."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | {RUNNING: "1"}
    children: dict[str, subprocess.Popen[str]] = {}
    ends: dict[str, list[Any] | str] = {}
    try:
        for mode in MODES:
            children[mode] = subprocess.Popen(
                [sys.executable, "-c", CHILD, mode, json.dumps(sys.path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            if not at_once:
                ends[mode] = _end_of(children[mode])
        if at_once:
            ends = {mode: _end_of(child) for mode, child in children.items()}
    except subprocess.TimeoutExpired as error:
        raise CannotCheck(f"it took more than {LIMIT_SECONDS} s") from error
    finally:
        for child in children.values():
            if child.poll() is None:
                child.kill()
                child.wait()
    return ends


def _end_of(child: subprocess.Popen[str]) -> list[Any] | str:
    """Return a child's report, or a string that says how it failed."""
    printed, complaints = child.communicate(timeout=LIMIT_SECONDS)
    if child.returncode == 0:
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
            answers = json.loads(printed.splitlines()[-1])
            comparable: list[Any] = Places(answers[-1]["device_traces"][0]).instead_of_addresses(answers)
            return comparable
    lines = [line for line in complaints.splitlines() if line.strip()] or ["it printed nothing"]
    return f"exit status {child.returncode}, {lines[-1].strip()[:300]}"


# The program of the children.


def work(mode: str) -> None:
    """Run the program under an allocator, and print what PyTorch reports."""
    import torch

    if mode == "deep":
        del os.environ[RUNNING]
        from allotment.torch._install import install

        install("deep")
    print("\n" + json.dumps(Program(torch).run()), flush=True)


class Program:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
        self.kept: list[Any] = []
        self.reports: list[Any] = []

    def run(self) -> list[Any]:
        cuda = self.torch.cuda
        cuda.memory._record_memory_history(stacks="python")
        for step in (self.sizes, self.streams_and_events, self.contents, self.pool, self.capture, self.failure):
            step()
            self.reports.append(dict(cuda.memory_stats()))
        cuda.empty_cache()
        self.reports += [self.known(cuda.memory_snapshot()), self.known(cuda.memory._snapshot())]
        return self.reports

    def new(self, size: int) -> Any:
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def sizes(self) -> None:
        self.kept += [self.new(size) for size in (1, 512, 4_000, 900_000, MIB, 3 * MIB, 11 * MIB, 30 * MIB)]
        del self.kept[1::2]
        self.kept += [self.new(size) for size in (300, 2 * MIB, 20 * MIB)]

    def streams_and_events(self) -> None:
        with self.torch.cuda.stream(self.streams[1]):
            self.kept.append(self.new(70_000))
        self.kept[0].record_stream(self.streams[1])
        del self.kept[0]
        self.torch.cuda.synchronize()
        self.kept.append(self.new(200 * KIB))

    def contents(self) -> None:
        source = self.torch.arange(256, dtype=self.torch.uint8).repeat(4096)
        self.reports.append(bool((source.cuda().cpu() == source).all()))

    def pool(self) -> None:
        pool = self.torch.cuda.MemPool()
        with self.torch.cuda.use_mem_pool(pool):
            tensor = self.new(3 * MIB)
        self.reports.append([pool.use_count(), len(pool.snapshot())])
        del tensor

    def capture(self) -> None:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.streams[1]):
            made = self.new(MIB)
            made.zero_()
        made.copy_(self.torch.arange(256, dtype=self.torch.uint8).repeat(4096))
        graph.replay()
        self.torch.cuda.synchronize()
        self.reports.append(int(made.cpu().max()))
        self.kept += [graph, made]

    def failure(self) -> None:
        try:
            self.new(1 << 50)
        except self.torch.OutOfMemoryError as error:
            self.reports.append(type(error).__name__)

    def known(self, report: Any) -> Any:
        """Return a report without its random parts: clocks, handles of streams, memory of other processes."""
        if isinstance(report, dict):
            known = {key: self.known(value) for key, value in report.items() if key not in ("time_us", "device_free")}
            if "device_traces" in known:
                known["device_traces"] = [in_settled_order(trace) for trace in known["device_traces"]]
            if "stream" in known:
                handles = [stream.cuda_stream for stream in self.streams]
                known["stream"] = handles.index(known["stream"]) if known["stream"] in handles else "another"
            return known
        return [self.known(part) for part in report] if isinstance(report, (list, tuple)) else report
