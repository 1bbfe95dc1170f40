"""What frames of PyTorch show about the memory that was allocated under them."""

from __future__ import annotations

import pytest

from allotment._formats.pickle_columns import Frame
from allotment.lab.explain.stack_marks import Mark, hook_of, marks_of
from helpers.known_causes import CALLED, HOME, MODULE, TORCH, calling_backward, forward, loading, optimizing, own
from helpers.known_causes import Stack as Names

COMPILED = ("torch::unwind::unwind()", "??", 0)
LIBRARY = f"{TORCH}/lib/libtorch_cuda.so"


def mark(names: Names) -> Mark:
    return Mark(int(marks_of([tuple(Frame(*name) for name in names)])[0]))


@pytest.mark.parametrize(
    ("names", "has", "has_not"),
    [
        (forward(31), Mark.FORWARD, Mark.BACKWARD | Mark.LOADING | Mark.HOOK),
        (loading(20), Mark.LOADING, Mark.FORWARD),
        (calling_backward(56), Mark.CALLS_BACKWARD, Mark.BACKWARD | Mark.FORWARD),
        (optimizing(57, "step"), Mark.OPTIMIZER, Mark.FORWARD),
        ((("clip_grad_norm_", f"{TORCH}/nn/utils/clip_grad.py", 80), *own(58)), Mark(0), Mark.FORWARD),
        # A custom function: the program calls its forward pass, the engine its backward pass.
        ((("apply", f"{TORCH}/autograd/function.py", 575), *own(41)), Mark(0), Mark.BACKWARD),
        ((("f", f"{HOME}/f.py", 3), ("apply", f"{TORCH}/autograd/function.py", 307)), Mark.BACKWARD, Mark(0)),
        ((("unpack_hook", f"{TORCH}/utils/checkpoint.py", 1100),), Mark.BACKWARD | Mark.RECOMPUTE, Mark(0)),
        ((COMPILED, ("torch::autograd::Engine::thread_main", "??", 0)), Mark.BACKWARD, Mark(0)),
        ((COMPILED, ("at::cuda::getCUDABlasLtWorkspace()", "??", 0), *forward(31)), Mark.WORKSPACE, Mark.BACKWARD),
        ((("at::cuda::getCurrentCUDABlasHandle()", LIBRARY, 7), *own(66)), Mark.WORKSPACE, Mark.BACKWARD),
        ((("torch::autograd::Engine::thread_main", LIBRARY, 9),), Mark.BACKWARD, Mark(0)),
        ((("__deepcopy__", f"{TORCH}/nn/parameter.py", 66), *own(24)), Mark.LOADING, Mark.FORWARD),
    ],
)
def test_a_stack_has_the_marks_of_its_frames(names: Names, has: Mark, has_not: Mark) -> None:
    found = mark(names)
    assert found & has == has and not found & has_not


def test_a_hook_is_what_a_module_calls_that_is_not_its_forward() -> None:
    hook = ("keep", f"{HOME}/probes.py", 14)
    for between in ((), (COMPILED, COMPILED)):
        stack = tuple(Frame(*each) for each in (COMPILED, hook, *between, ("inner", MODULE, 1840), *CALLED, *own(52)))
        assert hook_of(stack) == Frame(*hook)
        assert Mark.HOOK in mark(tuple(tuple(frame) for frame in stack))  # type: ignore[misc]
    assert hook_of(tuple(Frame(*each) for each in forward(31))) is None
