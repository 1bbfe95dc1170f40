"""The one allocation map of the process: which memory came from a caching allocator, and how large it is.

All caching allocators share it, because one may free memory that another allocated. One lock protects the map, its
records and every allocator's free lists:

    - Code under the lock is short, touches only C data, and never waits: neither for a system allocator, which is
      called before or after, and not for the interpreter.
    - So a thread that needs the lock may wait for it without a deadlock, whether it holds the interpreter lock or not;
      which is what the handlers around a fork do. Python code still only tries it first, and releases the interpreter
      lock before it waits, so that other Python threads run meanwhile.
    - Memory leaves the map before it returns to its system. In the other order another thread could get the
      same address and record it just before the late removal.

A fork takes the lock first, so the child finds the map whole and the lock free.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.host_cache.system_memory cimport System, system_free
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap, map_get
from allotment._core.tools.slab cimport Slab


cdef enum Outcome:
    DONE
    LEAVES              # not cached: the memory named as leaving returns to its system after the unlock
    OUT_OF_MEMORY
    NOT_ALLOCATED       # refused: no memory of a caching allocator begins there
    ALREADY_FREE        # refused: it lies on a free list


# Memory that came from a system. Free lists return it once, however often it was freed into them:
#
#     in the map, times_cached 0      in use
#     in the map, times_cached 1      on a free list; above 1 only if a free was repeated and checks are off
#     not in the map, times_cached>0  declared as freed outside, or its other allocator is gone; still on a list
#
# When neither holds any more, the record is recycled.
cdef struct Allocation:
    address_t address
    bytes_t size
    System* system          # the system that it returns to
    uint32_t times_cached   # the number of its places on free lists
    bint is_mapped          # the map contains it
    bint is_checked         # cached, by an allocator in checked mode
    bint is_plain           # not from a caching allocator: recorded so that checks can tell it from foreign memory


# Memory that leaves, named while the lock is still held.
cdef struct Leaving:
    System* system
    address_t address       # 0 is nothing
    bytes_t size            # 0 is unknown


cdef struct Registry:
    Lock lock
    PointerMap map          # address + 1 -> Allocation: size 0 may have address 0, and is recorded too
    Slab records
    bytes_t recorded_bytes  # in the map, without plain memory
    bytes_t cached_bytes    # on free lists
    size_t checkers         # allocators in checked mode: while there are any, plain memory is recorded too

cdef Registry registry


# pre, for all functions: the lock is held.

cdef inline Allocation* find(address_t address) noexcept nogil:
    cdef uint64_t key = address + 1
    return <Allocation*> map_get(&registry.map, key) if key != 0 else NULL

# Record new memory; an older record of its address is outdated. False: no memory for the record (or an address that
# memory cannot have).
cdef bint record(address_t address, bytes_t size, System* system, bint is_plain) noexcept nogil

# Removes an allocation from the map, if it is there.
cdef void forget(Allocation* allocation) noexcept nogil

# Remove one place on a free list, because the memory is allocated again. pre: times_cached > 0
cdef void uncache(Allocation* allocation) noexcept nogil

# Remove one place, and the map's entry, because the list is dropped. pre: times_cached > 0. True: it was the last
# place. Only the caller has the memory then; it returns the memory and then recycles the record.
cdef bint withdraw(Allocation* allocation) noexcept nogil
cdef void recycle(Allocation* allocation) noexcept nogil


# Completes LEAVES. pre: the lock is not held.
cdef inline void send_back(const Leaving* leaving) noexcept nogil:
    system_free(leaving.system, leaving.address, leaving.size)
