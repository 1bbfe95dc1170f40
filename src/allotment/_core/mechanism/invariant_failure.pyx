from allotment._core.model.model cimport Block

from allotment.errors import InvariantError


cdef int violated(str rule, str detail) except -1:
    raise InvariantError(rule, detail)


cdef str describe_block(const Block* block):
    return (f"block {block.address:#x}+{block.size} of pool ({block.free_list.half.pool.first}, "
            f"{block.free_list.half.pool.second}), stream {block.free_list.stream.handle}")
