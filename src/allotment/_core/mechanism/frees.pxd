"""Freeing a block for its user, now or before a thread leaves the engine.

A destructor can run in the middle of an engine operation, on the thread that runs it (a garbage collection inside a
backend or callback written in Python). Its free goes on a list, which is drained before the thread leaves the engine,
never inside the other operation.

pre, for all: the caller is inside the engine. (With the interpreter lock only, if `interpreter_lock_suffices`, it may
call `free_at_once`, which asks no device.)
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport Block, Engine, Failure

# A free begins with `address_take`, which removes the address from the map of live blocks. Then, on the block found:
cdef void free_at_once(Engine* engine, Block* block, uint32_t context) noexcept nogil   # if `is_freed_at_once`
# Otherwise, also for NULL: may leave the lock for a while. After a failure, the address is live as before.
cdef bint free_asking_device(Engine* engine, Block* block, address_t address, uint32_t context,
                             Failure* failure) noexcept nogil
# The whole free, on the thread that is inside an operation of the engine: it is done before that thread leaves.
cdef bint free_later(Engine* engine, address_t address, Failure* failure) noexcept nogil
cdef void finish_late_frees(Engine* engine) noexcept nogil


cdef inline bint is_freed_at_once(const Block* block) noexcept nogil:
    """Whether freeing the block found at an address needs no device call."""
    return block != NULL and block.uses == NULL
