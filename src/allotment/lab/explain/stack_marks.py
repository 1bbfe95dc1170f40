"""What the frames of a stack show about the memory allocated under it.

This examines only names of files and functions, those of PyTorch, of libraries around it and, for caches and hooks, of
the program. A stack may have several marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment._formats.torch_snapshot import Stack
from allotment.lab.explain.holders import is_compiled

__all__ = ["Mark", "hook_of", "marks_of"]

MODULE_FILE = "torch/nn/modules/module.py"
MODULE_CALLS = ("_call_impl", "inner")
NOT_HOOKS = ("forward", "_slow_forward", "_call_impl", "_wrapped_call_impl", "inner", "__call__")


class Mark(IntFlag):
    """A fact that a stack shows."""

    FORWARD = 1
    """A module's `forward`, or a function of `torch.nn`."""
    BACKWARD = 2
    """Code that the autograd engine calls."""
    CALLS_BACKWARD = 4
    """A call of `backward()` or `torch.autograd.grad`, which starts the engine."""
    OPTIMIZER = 8
    LOADING = 16
    """A module that is created, moved to a device, or filled from a file."""
    WORKSPACE = 32
    """A library's workspace."""
    CAPTURE = 64
    """Inside the capture of a graph."""
    CACHE = 128
    """A cache of keys and values, by its name."""
    RECOMPUTE = 256
    """A forward pass that is repeated for the backward pass (checkpointing)."""
    HOOK = 512
    """A hook of a module."""
    GRADIENT_BUCKET = 1024
    """Buckets for gradients of data-parallel training."""
    COPY = 2048
    """A model that is copied."""
    MAKING = 4096
    """An `__init__` of the program's own."""


def marks_of(stacks: Sequence[Stack]) -> NDArray[np.uint16]:
    """Return the marks of each stack."""
    known: dict[Frame, int] = {}
    found = np.zeros(len(stacks), dtype=np.uint16)
    for place, stack in enumerate(stacks):
        marks = 0
        outermost: Frame | None = None
        for frame in stack:
            mark = known.get(frame)
            if mark is None:
                mark = known[frame] = int(_mark_of(frame))
            marks |= mark
            if not is_compiled(frame):
                outermost = frame
        if marks & Mark.FORWARD and hook_of(stack) is not None:
            marks |= Mark.HOOK
        if outermost is not None and _begins_backward(outermost):
            marks |= Mark.BACKWARD
        found[place] = marks
    return found


def _begins_backward(outermost: Frame) -> bool:
    """Whether a thread of the autograd engine called the Python code, judged by its outermost frame.

    That frame is of a custom function, a recomputation or a compiled graph; in the program's own threads these are
    further in.
    """
    file = outermost.filename.replace("\\", "/")
    if file.endswith("torch/autograd/function.py"):
        return outermost.name == "apply"
    return file.endswith("torch/utils/checkpoint.py") or "/torch/_functorch/" in file


def hook_of(stack: Stack) -> Frame | None:
    """Return the frame of a hook: a function other than `forward` that a module's call has called."""
    for inner, outer in pairwise(frame for frame in stack if not is_compiled(frame)):
        is_call = outer.name in MODULE_CALLS and outer.filename.replace("\\", "/").endswith(MODULE_FILE)
        if is_call and inner.name not in NOT_HOOKS and "torch/nn/" not in inner.filename:
            return inner
    return None


def _mark_of(frame: Frame) -> Mark:
    if is_compiled(frame):
        return _mark_of_compiled(frame.name)
    file, name = frame.filename.replace("\\", "/"), frame.name
    mark = Mark(0)
    if "/torch/nn/" in file or file.startswith("torch/nn/"):
        mark |= _mark_of_module(file, name)
    elif "/torch/autograd/" in file:
        if name in ("backward", "grad", "_make_grads", "_engine_run_backward"):
            mark |= Mark.CALLS_BACKWARD
    elif file.endswith("torch/utils/checkpoint.py") and name in ("unpack_hook", "recompute_fn", "backward"):
        mark |= Mark.RECOMPUTE
    elif "/optim/" in file or "/optimizers/" in file or "optimizer" in file.rpartition("/")[2].lower():
        mark |= Mark.OPTIMIZER
    elif file.endswith(("torch/cuda/graphs.py", "cudagraph_trees.py")):
        mark |= Mark.CAPTURE
    elif "/safetensors/" in file or name in ("from_pretrained", "load_state_dict", "_load_state_dict_into_model"):
        mark |= Mark.LOADING
    if name in ("forward", "_forward"):
        mark |= Mark.FORWARD
    if name == "__init__":
        mark |= Mark.MAKING
    if file.endswith("/copy.py") and name in ("deepcopy", "_reconstruct", "_deepcopy_dict"):
        mark |= Mark.LOADING | Mark.COPY
    if "cache" in file.rpartition("/")[2].lower() or _names_cache(name):
        mark |= Mark.CACHE
    return mark


def _mark_of_module(file: str, name: str) -> Mark:
    if file.endswith("/module.py"):
        if name in ("_apply", "to", "cuda", "convert", "load_state_dict", "_load_from_state_dict", "to_empty"):
            return Mark.LOADING
        return Mark.FORWARD if name in MODULE_CALLS else Mark(0)
    if "/nn/utils/" in file:
        return Mark(0)
    if "/parallel/distributed.py" in file and name != "forward":
        return Mark.GRADIENT_BUCKET
    if name in ("__init__", "reset_parameters", "__new__", "__deepcopy__"):
        return Mark.LOADING
    return Mark.FORWARD


def _names_cache(name: str) -> bool:
    lower = name.lower()
    return "kv_cache" in lower or "kvcache" in lower or "past_key_values" in lower


def _mark_of_compiled(name: str) -> Mark:
    mark = Mark(0)
    if "autograd::Engine::" in name or ("::apply" in name and ("Backward" in name or "AccumulateGrad" in name)):
        mark |= Mark.BACKWARD
    # Memory allocated while a handle of cuBLAS is created or fetched is its workspace.
    if ("orkspace" in name and "autograd" not in name) or "BlasHandle" in name or "BlasLtHandle" in name:
        mark |= Mark.WORKSPACE
    return mark
