"""Copies the rules record, which people read, to the flags that the engine reads."""

from allotment._core.model.rules cimport Rules


cdef int fill_rules(Rules* rules, object chosen) except -1:
    cdef Rules fresh
    fresh.numbers_blocks = chosen.free_order == "block"
    fresh.numbers_segments = chosen.free_order == "segment"
    fresh.only_captures_defer = chosen.only_captures_defer
    fresh.end_of_routing_settles = chosen.end_of_routing_settles
    fresh.limit_is_rounded = chosen.limit_is_rounded
    fresh.handle_version = chosen.handle_version
    rules[0] = fresh
    return 0
