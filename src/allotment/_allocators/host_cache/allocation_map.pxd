"""The one allocation map of the process: which memory came from a caching allocator, and how large it is.

All caching allocators share it, because memory may be allocated by one and freed through another. One lock
protects the map, its records and every allocator's free lists:

    - Code under the lock is short, touches C data alone, and never waits: not for a system allocator, which is
      called before or after, and not for the interpreter.
    - So whoever needs the lock may wait for it, holding the interpreter lock or not, without a deadlock; that
      is what the handlers around a fork do. Python code still only tries it first, and lets the interpreter go
      before it waits, so that other Python threads run meanwhile.
    - Memory leaves the map before it goes back to its system. In the other order another thread could get the
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
    LEAVES              # not cached: what is named as leaving goes back to its system once the lock is given
    OUT_OF_MEMORY
    NOT_ALLOCATED       # refused: no memory of ours begins there
    ALREADY_FREE        # refused: it lies on a free list


# Memory that came from a system. Free lists give it back once, however often it was freed into them:
#
#     in the map, times_cached 0      in use
#     in the map, times_cached 1      on a free list; above 1 only if a free was repeated and checks are off
#     not in the map, times_cached>0  declared as freed outside, or its other allocator is gone; still on a list
#
# When neither holds any more, the record is recycled.
cdef struct Allocation:
    address_t address
    bytes_t size
    System* system          # where it goes back to
    uint32_t times_cached   # on how many places of free lists it lies
    bint is_mapped          # the map leads here
    bint is_checked         # cached, by an allocator in checked mode
    bint is_plain           # not from a caching allocator: known so that checks can tell it from foreign memory


# Memory on its way out, while the lock is still held.
cdef struct Leaving:
    System* system
    address_t address       # 0 is nothing
    bytes_t size            # 0 is unknown


cdef struct Registry:
    Lock lock
    PointerMap map          # address + 1 -> Allocation: size 0 may have address 0, and is recorded like all else
    Slab records
    bytes_t recorded_bytes  # in the map, without what is plain
    bytes_t cached_bytes    # on free lists
    size_t checkers         # allocators in checked mode: while there are any, plain memory is recorded too

cdef Registry registry


# pre, for all: the lock is held.

cdef inline Allocation* find(address_t address) noexcept nogil:
    cdef uint64_t key = address + 1
    return <Allocation*> map_get(&registry.map, key) if key != 0 else NULL

# Record new memory; what the map said of its address is outdated. False: no memory for the record (or an
# address that no memory can have).
cdef bint record(address_t address, bytes_t size, System* system, bint is_plain) noexcept nogil

# Take an allocation out of the map, if it is there.
cdef void forget(Allocation* allocation) noexcept nogil

# One place less on a free list, because the memory is handed out. pre: times_cached > 0
cdef void uncache(Allocation* allocation) noexcept nogil

# One place less, and out of the map, because the list is given up. pre: times_cached > 0
# True: it was the last one. The memory is now the caller's alone, who gives it back and then recycles the record.
cdef bint withdraw(Allocation* allocation) noexcept nogil
cdef void recycle(Allocation* allocation) noexcept nogil


# What a LEAVES asks for. pre: the lock is not held.
cdef inline void send_back(const Leaving* leaving) noexcept nogil:
    system_free(leaving.system, leaving.address, leaving.size)
