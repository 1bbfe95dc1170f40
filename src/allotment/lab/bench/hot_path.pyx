"""Compiled loops for the benchmark: the costs that a C caller sees, and those of the machine itself."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from allotment._allocators.caching.entry_points cimport EntryPoints, entry_points_of


cdef class EmptyAllocator:
    """EmptyAllocator()\n--\n
    Only the calls: takes a size and returns an address, takes an address, does nothing.

    Its methods are as cheap to call as the allocator's own.
    """
    cdef uint64_t address

    def __cinit__(self):
        self.address = <uint64_t> 1 << 40

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def malloc(self, size: int, stream: int = 0) -> int:
        return self.address

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address: int, /) -> None:
        pass


cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <windows.h>
    static __inline double allotment_now_ns(void) {
        LARGE_INTEGER t, f; QueryPerformanceCounter(&t); QueryPerformanceFrequency(&f);
        return (double) t.QuadPart * 1e9 / (double) f.QuadPart;
    }
    #else
    #include <time.h>
    static inline double allotment_now_ns(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
        return (double) t.tv_sec * 1e9 + (double) t.tv_nsec;
    }
    #endif
    """
    double now_ns "allotment_now_ns"() noexcept nogil


cdef inline uint64_t scramble(uint64_t* state) noexcept nogil:
    """A xorshift step: random numbers that cost next to nothing."""
    state[0] ^= state[0] << 13
    state[0] ^= state[0] >> 7
    state[0] ^= state[0] << 17
    return state[0]


cdef class CPairs:
    """CPairs(allocator)\n--\n
    An allocator as C sees it: by its entry points, without the interpreter.
    """
    cdef EntryPoints* table

    def __cinit__(self, allocator: Allocator):
        self.table = entry_points_of(allocator)

    def pair_ns(self, size_t size, size_t pairs, uint64_t stream=0) -> float:
        """Nanoseconds per allocate and free of one block that is in the cache."""
        cdef EntryPoints* table = self.table
        cdef double start, taken
        cdef void* block
        cdef size_t _
        with nogil:
            block = table.allocate(table.context, size, 0, <void*> stream)
            table.free(table.context, block, size, 0, <void*> stream)
            start = now_ns()
            for _ in range(pairs):
                block = table.allocate(table.context, size, 0, <void*> stream)
                table.free(table.context, block, size, 0, <void*> stream)
            taken = now_ns() - start
        return taken / pairs

    def replacement_ns(self, size_t live, size_t size, size_t replacements) -> float:
        """Nanoseconds to free one of `live` blocks, chosen at random, and allocate another in its place."""
        cdef EntryPoints* table = self.table
        cdef void** blocks = <void**> malloc(live * sizeof(void*))
        cdef uint64_t state = 88172645463325252ULL
        cdef double start = 0.0
        cdef double taken = 0.0
        cdef size_t i, which, _
        if blocks == NULL:
            raise MemoryError("no memory for the benchmark's list")
        with nogil:
            for i in range(live):
                blocks[i] = table.allocate(table.context, size, 0, NULL)
            start = now_ns()
            for _ in range(replacements):
                which = scramble(&state) % live
                table.free(table.context, blocks[which], size, 0, NULL)
                blocks[which] = table.allocate(table.context, size, 0, NULL)
            taken = now_ns() - start
            for i in range(live):
                table.free(table.context, blocks[i], size, 0, NULL)
            free(blocks)
        return taken / replacements


cdef struct WalkRecord:
    WalkRecord* next
    uint64_t filler[15]     # gives a record the size of the engine's blocks


cdef uint64_t seen = 0       # so that the compiler cannot remove the walk


def pointer_walk_ns(size_t records, size_t steps) -> float:
    """Nanoseconds per step to a random one of `records`, and to its neighbour: only the cost of cache misses."""
    cdef WalkRecord* all_records = <WalkRecord*> malloc(records * sizeof(WalkRecord))
    cdef WalkRecord* at
    cdef uint64_t state = 88172645463325252ULL
    cdef uint64_t total = 0
    cdef double start, taken
    cdef size_t i, _
    if all_records == NULL:
        raise MemoryError("no memory for the benchmark's records")
    with nogil:
        for i in range(records):
            all_records[i].next = &all_records[(i + 1) % records]
            all_records[i].filler[0] = i
        start = now_ns()
        for _ in range(steps):
            # The next step depends on what this one read, as a free depends on the block it looked up.
            at = &all_records[(scramble(&state) + (total & 1)) % records]
            total += at.filler[0]
            total += at.next.filler[0]
        taken = now_ns() - start
        free(all_records)
    global seen
    seen += total
    return taken / steps
