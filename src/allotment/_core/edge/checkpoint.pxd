"""Saves and restores the arrangement of a private pool.

    take      record the pool's ranges, block by block: address, size, in use or free, mapped or not
    restore   wait for the streams that use blocks of the recorded ranges;
              free everything in use, which leaves each range as maximal free runs;
              then allocate every recorded block in order, which splits the runs where they were split;
              then free those that were free

Before a restore changes anything, it checks the state against the pool: every recorded range must still exist with the
same memory mapped. An expandable range may have grown at its end, as PyTorch allows: the new memory is free then, and
part of the last recorded block if that is free. Waiting for streams releases the lock, so the restore repeats the check
after each wait. Ranges that came later stay, wholly free; blocks freed in them may go on waiting. Statistics and trace
see each step. A state does not contain request sizes, so a revived block's request is its size.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport address_t
from allotment._core.edge.walk cimport Arrangement
from allotment._core.model.model cimport Engine, Failure

cdef struct AddressList:
    address_t* addresses
    size_t count, room

cdef bint checkpoint_take(Engine* engine, uint64_t first, uint64_t second, uint32_t context, Arrangement* state,
                          Failure* failure) noexcept nogil
cdef bint checkpoint_restore(Engine* engine, uint64_t first, uint64_t second, const Arrangement* state,
                             uint32_t context, AddressList* freed, AddressList* created,
                             Failure* failure) noexcept nogil
cdef bint pool_addresses(Engine* engine, uint64_t first, uint64_t second, AddressList* out,
                         Failure* failure) noexcept nogil
