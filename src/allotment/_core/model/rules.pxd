"""The rules that differ between PyTorch's versions, as the flags and numbers that the engine reads.

A table above the core says which version has which rule; here each difference has a name and no version. The code that
decides reads the rule. The order of free blocks is the exception: each block carries it as a number, so that comparing
two blocks reads no rule (see `free_index`).
"""

cdef struct Rules:
    bint numbers_blocks             # among equal free blocks, prefer the one whose record was created first
    bint numbers_segments           # ... the one of the oldest segment; neither: the lowest address
    bint only_captures_defer        # whether only a capture defers frees, or also routing: see `captures`
    bint end_of_routing_settles     # with stream reuse: then blocks that wait in the pool are freed or get their events
    bint limit_is_rounded           # a fraction of memory is rounded to the nearest byte, else truncated
    unsigned char handle_version    # first byte of what `sharing` writes

cdef int fill_rules(Rules* rules, object chosen) except -1
