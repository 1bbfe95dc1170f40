"""Races planted in PyTorch programs, which the sanitizer must report with both places, and correct programs, which it
must not report.

Argument: the mode of `install`. Nothing here reads values, so it also works where kernels do nothing.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from checks import check, run_checks

import allotment.torch

allotment.torch.install(sys.argv[1])

import torch  # noqa: E402

warnings.simplefilter("ignore")
MAIN, SIDE, THIRD = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()


@contextmanager
def finds(*expected: str, places: int = 2) -> Iterator[None]:
    """Check that the block's findings are these, in this order; each names so many places in this file."""
    torch.cuda.synchronize()
    with allotment.torch.sanitize() as sanitizers:
        yield
        torch.cuda.synchronize()
    reports = sanitizers[0].reports
    assert [report.kind for report in reports] == list(expected), "\n".join(map(str, reports)) or "nothing was reported"
    for report in reports:
        here = [any(name == __file__ for name, _, _ in access.stack) for access in (report.first, report.second)]
        assert sum(here) == places, str(report)


def new() -> torch.Tensor:
    return torch.zeros(1000, device="cuda")


# Freed while a stream may still use it.


@check
def a_missing_record_stream() -> None:
    with finds("not recorded"):
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        del x


@check
def a_missing_record_stream_of_a_reader() -> None:
    with finds("not recorded"):
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            y = x + 1
        del x
    del y


@check
def record_stream_of_another_tensor() -> None:
    with finds("not recorded"):
        x, y = new(), new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        y.record_stream(SIDE)
        del x


@check
def record_stream_of_another_stream() -> None:
    with finds("not recorded"):
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        x.record_stream(THIRD)
        del x


@check
def used_again_after_the_stream_was_waited_for() -> None:
    with finds("not recorded"):
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        MAIN.wait_stream(SIDE)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        del x


@check
def a_view_used_and_both_dropped() -> None:
    with finds("not recorded"):
        x = new()
        view = x[10:].view(-1, 9)
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            view.mul_(2)
        del view, x


@check
def the_source_of_a_copy_dropped() -> None:
    with finds("not recorded"):
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            y = torch.empty(1000, device="cuda").copy_(x)
        del x
    del y


@check
def dropped_by_a_collection_of_garbage() -> None:
    with finds("not recorded"):
        ring: list[object] = [new()]
        ring.append(ring)
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            ring[0].add_(1)
        del ring
        gc.collect()


# Two accesses without order.


@check
def written_by_two_streams() -> None:
    x = new()
    with finds("race"):
        x.add_(1)
        with torch.cuda.stream(SIDE):
            x.add_(1)


@check
def read_before_it_is_written() -> None:
    x = new()
    with finds("race"):
        x.fill_(1)
        with torch.cuda.stream(SIDE):
            y = x + 1
    del y


@check
def overwritten_while_it_is_read() -> None:
    x = new()
    with finds("race"):
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            y = x + 1
        x.zero_()
    del y


@check
def an_event_recorded_too_early() -> None:
    x = new()
    with finds("race"):
        event = MAIN.record_event()
        x.fill_(1)
        SIDE.wait_event(event)
        with torch.cuda.stream(SIDE):
            x.mul_(2)


@check
def waited_on_the_wrong_stream() -> None:
    x = new()
    with finds("race"):
        x.fill_(1)
        THIRD.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.mul_(2)


@check
def waited_the_wrong_way_round() -> None:
    x = new()
    with finds("race"):
        x.fill_(1)
        MAIN.wait_stream(SIDE)
        with torch.cuda.stream(SIDE):
            x.mul_(2)


@check
def the_host_waited_for_the_wrong_stream() -> None:
    x = new()
    with finds("race"):
        with torch.cuda.stream(SIDE):
            x.fill_(1)
        THIRD.synchronize()
        x.mul_(2)


@check
def the_result_of_an_operation_is_given() -> None:
    x, y = new(), new()
    with finds("race"):
        y.fill_(1)
        with torch.cuda.stream(SIDE):
            torch.add(x, 1, out=y)


@check
def written_through_a_view() -> None:
    x = new()
    with finds("race"):
        x.fill_(1)
        with torch.cuda.stream(SIDE):
            x.view(10, 100).t()[3:5].zero_()


@check
def one_of_a_list_of_tensors() -> None:
    x, y = new(), new()
    with finds("race"):
        y.fill_(1)
        with torch.cuda.stream(SIDE):
            torch._foreach_add_([x, y], 1.0)


@check
def read_as_one_of_several() -> None:
    x, y = new(), new()
    with finds("race"):
        y.fill_(1)
        with torch.cuda.stream(SIDE):
            z = torch.cat([x, y])
    del z


@check
def a_gradient_read_before_it_is_there() -> None:
    x = new().requires_grad_()
    with finds("race", places=1):  # the other access is on a thread of PyTorch's
        (x * 2).backward(torch.ones_like(x))
        with torch.cuda.stream(SIDE):
            x.grad.mul_(2)


@check
def two_of_three_streams_in_order() -> None:
    x = new()
    with finds("race"):
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.fill_(1)
        event = SIDE.record_event()
        with torch.cuda.stream(SIDE):
            x.fill_(2)
        THIRD.wait_event(event)
        with torch.cuda.stream(THIRD):
            x.mul_(2)


# In order.


@check
def a_recorded_stream_is_in_order() -> None:
    with finds():
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        x.record_stream(SIDE)
        del x


@check
def a_stream_that_is_waited_for_is_in_order() -> None:
    with finds():
        x = new()
        SIDE.wait_stream(MAIN)
        with torch.cuda.stream(SIDE):
            x.add_(1)
        MAIN.wait_stream(SIDE)
        x.mul_(2)
        del x


@check
def an_event_after_the_work_is_in_order() -> None:
    with finds():
        x = new()
        SIDE.wait_event(MAIN.record_event())
        with torch.cuda.stream(SIDE):
            x.add_(1)
        SIDE.record_event().synchronize()
        x.mul_(2)
        del x


@check
def two_readers_are_in_order() -> None:
    x = new()
    with finds():
        SIDE.wait_stream(MAIN)
        y = x + 1
        with torch.cuda.stream(SIDE):
            z = x + 1
        MAIN.wait_stream(SIDE)
        x.zero_()
    del y, z


@check
def a_chain_of_three_streams_is_in_order() -> None:
    with finds():
        x = new()
        for earlier, later in ((MAIN, SIDE), (SIDE, THIRD), (THIRD, MAIN)):
            later.wait_stream(earlier)
            with torch.cuda.stream(later):
                x.mul_(2)
        del x


@check
def steps_of_training_are_in_order() -> None:
    weights = [new().requires_grad_() for _ in range(4)]
    optimizer = torch.optim.AdamW(weights)
    with finds():
        for step in range(5):
            batch = torch.ones(1000 - step, device="cuda")
            loss = sum((weight[: len(batch)] * batch).sum() for weight in weights)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@check
def memory_that_another_stream_had_is_in_order() -> None:
    with finds():
        for _ in range(20):
            x = new()
            SIDE.wait_stream(MAIN)
            with torch.cuda.stream(SIDE):
                y = x * 2
            x.record_stream(SIDE)
            del x
            MAIN.wait_stream(SIDE)
            y.add_(1)
            y.record_stream(MAIN)
            del y


run_checks()
