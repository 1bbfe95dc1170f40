"""The rules that differ between PyTorch's versions, as the flags and numbers that the engine reads.

Which version has which is written down once, above the core; here each difference has a name and no version. A rule
is read where it decides, except for the order of free blocks: that is made into a number that each block carries, so
that comparing two blocks asks no rule (see `free_index`).
"""

cdef struct Rules:
    bint numbers_blocks             # of equal free blocks the one whose record was made first
    bint numbers_segments           # ... the one of the oldest segment; neither: the one at the lowest address
    bint only_captures_defer        # see `captures`: what routing alone forbids, and what a capture does
    bint end_of_routing_settles     # with stream reuse: what waits in the pool is freed or gets its events
    bint limit_is_rounded           # a fraction of memory: to the nearest byte, else cut off
    unsigned char handle_version    # first byte of what `sharing` writes

cdef int fill_rules(Rules* rules, object chosen) except -1
