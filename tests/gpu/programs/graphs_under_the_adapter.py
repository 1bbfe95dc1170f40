"""Checks of CUDA graphs with Allotment as PyTorch's allocator. Arguments: the mode, and the settings string."""

from __future__ import annotations

import gc
import sys
import warnings

from checks import check, run_checks

from allotment.torch._install import install

MODE, SETTINGS = sys.argv[1:]
install(MODE, settings=SETTINGS)

import torch  # noqa: E402

from allotment.torch import memory  # noqa: E402
from allotment.torch._replacements import allocator_of  # noqa: E402

MIB = 1 << 20
STEPS = 10


class Training:
    """Return a small model with its data, equal each time."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Tanh()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 8)).double().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.batches = [(torch.randn(128, 64), torch.randn(128, 8)) for _ in range(STEPS)]
        self.x = torch.zeros(128, 64, dtype=torch.float64, device="cuda")
        self.y = torch.zeros(128, 8, dtype=torch.float64, device="cuda")

    def load(self, number: int) -> None:
        x, y = self.batches[number]
        self.x.copy_(x)
        self.y.copy_(y)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss

    def warm_up(self) -> None:
        """Make a few steps on a side stream, and undo them: a capture must not have to set anything up."""
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.model.load_state_dict(weights)
        self.optimizer.zero_grad(set_to_none=True)


def clean_up() -> None:
    """Check that earlier checks left nothing behind."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def private_segments() -> list[tuple[int, int]]:
    return [segment["segment_pool_id"] for segment in memory.memory_snapshot() if segment["segment_pool_id"] != (0, 0)]


@check
def a_training_step_replayed_gives_the_losses_of_eager_steps() -> None:
    eager = Training()
    expected = []
    for number in range(STEPS):
        eager.load(number)
        expected.append(eager.step().item())
    captured = Training()
    captured.load(0)
    captured.warm_up()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = captured.step()
    losses = []
    for number in range(STEPS):
        captured.load(number)
        graph.replay()
        losses.append(loss.item())
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-9), (losses, expected)
    for ours, theirs in zip(captured.model.parameters(), eager.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9)


@check
def tensors_made_between_replays_do_not_disturb_the_graph() -> None:
    x = torch.ones(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).square()
    for number in range(20):
        noise = [torch.full((size,), -1.0, device="cuda") for size in (1_000, MIB, 3 * MIB, 8 * MIB)]
        x.fill_(number)
        graph.replay()
        assert bool((y == (number * 2 + 1) ** 2).all())
        del noise


@check
def two_graphs_that_share_a_pool_are_both_right_and_share_its_memory() -> None:
    clean_up()
    x = torch.ones(4 * MIB, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = x.sin().cos().sum()
    held = memory.memory_reserved()
    with torch.cuda.graph(second, pool=first.pool()):
        b = x.cos().sin().sum()
    assert memory.memory_reserved() == held
    assert first.pool() == second.pool()
    assert allocator_of(0).pools.use_count(first.pool()) == 2
    for value in (0.5, 1.5):
        x.fill_(value)
        first.replay()
        assert torch.allclose(a, x.sin().cos().sum())
        second.replay()
        assert torch.allclose(b, x.cos().sin().sum())
    del a, b
    first.reset()
    assert allocator_of(0).pools.use_count(second.pool()) == 1
    second.reset()
    clean_up()
    assert private_segments() == []


@check
def a_graph_that_is_gone_gives_its_memory_back() -> None:
    clean_up()
    before = memory.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1_000, device="cuda")
    with torch.cuda.graph(graph):
        y = x.expand(64 * 1_024, 1_000).contiguous()
    assert private_segments() != []
    del graph, y, x
    clean_up()
    assert private_segments() == []
    assert memory.memory_reserved() <= before


def spoilt_capture(graph: torch.cuda.CUDAGraph) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            y = x * 2
            y.sum().item()
    except RuntimeError:
        torch.cuda.set_stream(stream)  # PyTorch leaves the capturing stream current when the end of a capture fails
    else:
        raise AssertionError("a capture with a synchronization in it came to an end")


@check
def a_capture_that_fails_leaves_nothing_behind_but_in_deep_mode_what_pytorch_leaves() -> None:
    clean_up()
    before = memory.memory_reserved()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        spoilt_capture(graph)
        del graph
        tensors = [torch.full((size,), 5.0, device="cuda") for size in (1_000, MIB, 30 * MIB)]
        assert all(bool((tensor == 5).all()) for tensor in tensors)
        del tensors
    clean_up()
    allocator_of(0).inspection.check_invariants()
    if MODE == "deep":
        assert private_segments()  # PyTorch 2.11 never tells its allocator that such a capture has ended
    else:
        assert private_segments() == []
        assert memory.memory_reserved() <= before


@check
def a_capture_after_one_that_failed_is_right() -> None:
    spoilt_capture(torch.cuda.CUDAGraph())
    x = torch.ones(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    x.fill_(41)
    graph.replay()
    assert bool((y == 42).all())


@check
def memory_freed_on_another_stream_while_capturing_is_not_reused_too_early() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(4 * MIB, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        capturing = torch.cuda.current_stream()
        y = x * 3
        side.wait_stream(capturing)
        with torch.cuda.stream(side):
            z = y + 1
        y.record_stream(side)
        del y
        other = torch.full_like(x, -1.0)
        capturing.wait_stream(side)
        result = z + other
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert bool((result == value * 3).all())


@check
def a_module_of_graphed_callables_has_right_gradients() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double().cuda()
    graphed = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).double().cuda()
    graphed.load_state_dict(plain.state_dict())
    sample = torch.randn(16, 32, dtype=torch.float64, device="cuda")
    call = torch.cuda.make_graphed_callables(graphed, (sample,))
    for _ in range(5):
        x = torch.randn(16, 32, dtype=torch.float64, device="cuda")
        for model, forward in ((plain, plain), (graphed, call)):
            model.zero_grad()
            forward(x).square().sum().backward()
        for ours, theirs in zip(graphed.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-9)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run_checks()
