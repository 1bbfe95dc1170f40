"""Work of the installed PyTorch on memory that sleeps, on a CUDA driver and runtime made of host memory."""

import pytest

from helpers.torch_on_host_memory import NEEDED

pytestmark = NEEDED

BEGIN = """
import copy, io, threading
import allotment, allotment.torch
import torch
from allotment.torch._deep.building import library
from allotment.torch._deep.deep import torch_here
library(torch_here())   # hooks mode uses it if it is there
allotment.torch.install({mode!r})
with allotment.tag("weights"):
    x = torch.empty(1000, device="cuda")
x.copy_(torch.arange(1000.0))
y = torch.zeros_like(x, device="cpu").to("cuda")

def refusal(work):
    try:
        work()
    except (RuntimeError, allotment.errors.PausedError) as error:
        assert str(error).startswith("tag 'weights' on cuda:0 is paused"), error
        return True
    return False
"""


@pytest.fixture(params=["deep", "hooks"])
def asleep(run, request):
    return lambda code: run("-c", BEGIN.format(mode=request.param) + code)


def test_what_needs_the_contents_is_refused_by_name_and_the_rest_works(asleep):
    printed = asleep("""
view = x[10:20]
allotment.torch.pause("weights")
for work in [
    lambda: x.cpu(), lambda: x[3].item(), lambda: repr(view), lambda: x.clone(), lambda: copy.deepcopy(x),
    lambda: y.copy_(x), lambda: x.copy_(y), lambda: x.untyped_storage().cpu(), lambda: torch.save(x, io.BytesIO()),
    lambda: torch.cat([y, x]), lambda: torch._foreach_copy_([y], [x]), lambda: torch.add(y, x),
    lambda: torch.sum(x),
]:
    assert refusal(work)
assert allotment.torch.installed_mode() == "hooks" or refusal(x.untyped_storage()._share_cuda_)
assert x[3:5].data_ptr() == x.data_ptr() + 12 and x.new_empty(3).numel() == 3
x.record_stream(torch.cuda.Stream())
assert y.cpu().sum() == 0
allotment.torch.resume("weights")
assert x.cpu()[999] == 999 and view.tolist()[0] == 10
assert not refusal(lambda: y.copy_(x)) and y.cpu()[5] == 5
print("done")
""")  # fmt: skip
    assert printed.strip() == "done"


def test_another_thread_is_refused_too_and_a_tensor_can_go_while_it_sleeps(asleep):
    printed = asleep("""
allotment.torch.pause("weights")
seen = []
thread = threading.Thread(target=lambda: seen.append(refusal(lambda: x.cpu())))
thread.start()
thread.join()
del x
allotment.torch.resume("weights")
print(seen, allotment.current("cuda:0").stats()["allocated_bytes.all.current"], len(y.tolist()))
""")  # fmt: skip
    assert printed.split() == ["[True]", "4096", "1000"]


def test_a_graph_whose_memory_sleeps_is_not_replayed(asleep):
    printed = asleep("""
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
with allotment.tag("weights"), torch.cuda.graph(graph, stream=stream):
    static = torch.empty(1000, device="cuda")
plain = torch.cuda.CUDAGraph.replay
graph.replay()
allotment.torch.pause("weights")
assert refusal(graph.replay) and refusal(static.cpu)
allotment.torch.resume("weights")
graph.replay()
print(torch.cuda.CUDAGraph.replay is plain)
""")  # fmt: skip
    assert printed.strip() == "True"
