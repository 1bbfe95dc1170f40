from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.edge.contexts_in_use cimport visit_context_t
from allotment._core.mechanism.ranges cimport first_range_of
from allotment._core.model.model cimport Block, Engine, Pool, Range
from allotment._core.records.tenants cimport stack_of

cdef struct Visitor:
    visit_context_t visit
    void* self


cdef bint visit_block(void* self, const Block* block, address_t address, bytes_t size, bint begins) noexcept nogil:
    cdef Visitor* visitor = <Visitor*> self
    if stack_of(block.context) != 0:
        visitor.visit(visitor.self, stack_of(block.context))
    if stack_of(block.segment_context) != 0:
        visitor.visit(visitor.self, stack_of(block.segment_context))
    return True


cdef void visit_pool(Engine* engine, Pool* pool, Visitor* visitor) noexcept nogil:
    cdef Range* range_ = first_range_of(engine, pool)
    cdef Block* block
    if pool.placement.walk != NULL:
        pool.placement.walk(engine, pool, visit_block, visitor)
        return
    while range_ != NULL:
        block = range_.head if range_.free_list.half.pool == pool else NULL
        while block != NULL:
            visit_block(visitor, block, block.address, block.size, False)
            block = block.next
        range_ = range_.next


cdef void contexts_in_use(Engine* engine, visit_context_t visit, void* self) noexcept nogil:
    cdef Visitor visitor
    cdef Pool* pool = engine.first_pool
    cdef size_t i
    visitor.visit = visit
    visitor.self = self
    visit_pool(engine, &engine.defaults, &visitor)
    while pool != NULL:
        visit_pool(engine, pool, &visitor)
        pool = pool.next
    for i in range(engine.trace.stored):
        if stack_of(engine.trace.ring[i].stack) != 0:
            visit(self, stack_of(engine.trace.ring[i].stack))
