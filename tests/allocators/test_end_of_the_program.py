"""A program may end with any of our objects open: it prints nothing about them, and ends as its own code says."""

import pytest

from helpers.child import output_of

KEPT = {
    "a block": "host = Allocator('host'); host.malloc(512); keep(host)",
    "a buffer, a slice and a view": "b = Allocator('host').empty(10); keep(b, b[2:5], memoryview(b))",
    "a stream with an event": "host = Allocator('host'); s = Stream(host); keep(s, s.record(), host.empty(9, s))",
    "a handle": "host = Allocator('host', settings='shareable:True'); b = host.empty(10); keep(host.share(b), b)",
    "a pool": "host = Allocator('host'); p = host.pool(); p.__enter__(); keep(p, host.empty(70))",
    "history": "sim = Allocator('sim:1GiB'); sim.record_history(); keep(sim, sim.empty(5))",
    "a sanitized allocator": "host = Allocator('host', sanitize=True); host.empty(5).close(); keep(host.empty(5))",
    "dense placement": "host = Allocator('host', settings='placement:dense'); keep(host, host.empty(5 << 20))",
    "the device's own pool": "pool = AsyncAllocator('sim:1GiB'); keep(pool, pool.empty(5 << 20))",
    "pinned memory": "pinned = PinnedAllocator('host'); keep(pinned, pinned.empty(5 << 20))",
    "NumPy's memory": "import numpy, allotment.numpy; allotment.numpy.install(); keep(numpy.ones(1 << 22))",
    "an array": "host = Allocator('host'); keep(host.array((5, 5), 'f4'), host)",
    "a paused tag": """
host = Allocator('host', settings='expandable_segments:True')
with allotment.tag('weights'):
    b = host.empty(1 << 20)
host.pause('weights')
keep(host, b)
""",
    "a tag that is paused in a file": """
host = Allocator('host')
with allotment.tag('weights'):
    b = host.empty(1 << 20)
host.pause('weights', keep='file')
keep(host, b)
""",
    "a graph": """
host = Allocator('host')
s = Stream(host)
with allotment.capture(s) as graph:
    b = host.empty(100, s)
keep(graph, s, b)
""",
    "a device in Python": """
class Device(allotment.Backend):
    def allocate(self, size, stream):
        return 1 << 30
    def free(self, address, size, stream):
        pass
keep(a := Allocator(Device()), a.empty(5))
""",
    "a callback": "sim = Allocator('sim:1GiB'); sim.on_out_of_memory(lambda facts: False); keep(sim, sim.empty(3))",
    "a queued piece of work": "s = Stream(Allocator('host')); keep(s, s.submit(int))",
}


@pytest.mark.parametrize("kept", KEPT)
def test_a_program_that_keeps_it_to_the_end_is_silent(kept):
    program = f"""
import sys
import allotment
from allotment import Allocator, AsyncAllocator, PinnedAllocator, Stream

def keep(*given):  # there is nothing that ends later
    sys.kept = given

{KEPT[kept]}
print("end")
"""
    assert output_of(program) == "end\n"
