"""Ctrl-C while Python code runs: a trace function raises at the n-th place where Python checks for signals."""

import _weakrefset
import dis
import gc
import inspect
import random
import sys
import threading
import weakref
from pathlib import Path

# The interpreter may be interrupted between `with` and the methods that it calls; no code can prevent that.
OF_WITH = {"__enter__", "__exit__"}
# Python checks for signals when a function begins, after a call, and at the start of each iteration of a loop.
NOTICES_SIGNALS = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
# Another test interrupts threads while they start. Exceptions in callbacks of weak references and of collections reach
# no caller.
FILES_LEFT_OUT = {threading.__file__, weakref.__file__, _weakrefset.__file__}
TESTS = str(Path(__file__).parents[1])


def handler_at(code, offset):
    """Return where the interpreter continues if this instruction raises; None if that leaves the frame."""
    entries = dis._parse_exception_table(code)
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


def is_in_finalizer(frame):
    """Whether an exception raised there reaches no caller."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted_at(number, operation):
    """Whether the operation was interrupted at this boundary, counted from 0; and how many it reached."""
    seen = 0
    done = False
    left_out = FILES_LEFT_OUT | {each.__code__.co_filename for each in gc.callbacks if hasattr(each, "__code__")}

    def boundary():
        nonlocal seen, done
        if seen == number:
            done = True
            raise KeyboardInterrupt
        seen += 1

    def trace(frame, event, argument):
        code = frame.f_code
        if done or code.co_filename in left_out or code.co_filename.startswith(TESTS) or is_in_finalizer(frame):
            return None
        # A trace function that raises when a generator resumes leaves the interpreter inside that generator.
        if code.co_name not in OF_WITH and not code.co_flags & inspect.CO_GENERATOR:
            boundary()
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before = None

        def trace_inside(frame, event, argument):
            nonlocal before
            if event == "opcode":
                # A signal is raised by the instruction that notices it, and the trace function by the next one. They
                # differ where a block ends: there, only the trace function would skip the block's `__exit__`.
                notices = before is not None and handler_at(code, before) == handler_at(code, frame.f_lasti)
                before = frame.f_lasti if dis.opname[code.co_code[frame.f_lasti]].startswith(NOTICES_SIGNALS) else None
                if notices and not done:
                    boundary()
            return trace_inside

        return trace_inside

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    except KeyboardInterrupt:
        assert done
    finally:
        sys.settrace(before)
    return done, seen


def sweep(operation, check, most=2000, drawn=None):
    """Interrupt the operation at each boundary in turn, or at `drawn` of them; return how many exist.

    `check` repeats the operation, and restores the initial state.
    """
    if drawn is not None:
        _, count = interrupted_at(most, operation)
        check(False)
        for number in sorted(random.Random(1).sample(range(count), min(drawn, count))):
            was_interrupted, _ = interrupted_at(number, operation)
            check(was_interrupted)
        return count
    for number in range(most):
        was_interrupted, _ = interrupted_at(number, operation)
        check(was_interrupted)
        if not was_interrupted:
            return number
    raise AssertionError(f"not done after {most} boundaries")
