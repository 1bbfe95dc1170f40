"""The data structures of `_core/tools`, one step at a time, for tests that compare them with simple models."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._core.tools cimport bits
from allotment._core.tools.arrays cimport make_room_for
from allotment._core.tools.bias cimport COUNTING, SUCCESSION
from allotment._core.tools.lock cimport (
    Lock, allotment_lock_take, lock_allow_bias, lock_forget_other_threads, lock_give, lock_is_mine, lock_lend,
    lock_reclaim, lock_try, lock_wait)
from allotment._core.tools.pointer_map cimport (
    PointerMap, map_clear, map_get, map_home, map_init, map_pop, map_put, map_reserve)
from allotment._core.tools.slab cimport Slab, slab_clear, slab_give, slab_init, slab_reserve, slab_take


def lowest_bit(uint64_t word):
    return bits.lowest_bit(word)


def highest_bit(uint64_t word):
    return bits.highest_bit(word)


cdef class Map:
    cdef PointerMap map

    def __cinit__(self):
        if not map_init(&self.map):
            raise MemoryError

    def __dealloc__(self):
        map_clear(&self.map)

    def get(self, uint64_t key):
        return <uint64_t> map_get(&self.map, key)

    def put(self, uint64_t key, uint64_t value):
        if not map_reserve(&self.map):
            raise MemoryError
        map_put(&self.map, key, <void*> value)

    def pop(self, uint64_t key):
        return <uint64_t> map_pop(&self.map, key)

    def home(self, uint64_t key):
        """Return the slot where the search for a key starts, at the table's current size."""
        return map_home(&self.map, key)

    def slots(self):
        """Return (key, value) of every slot, including empty ones."""
        return [(self.map.slots[i].key, <uint64_t> self.map.slots[i].value) for i in range(self.map.mask + 1)]

    def __len__(self):
        return self.map.count


cdef class Records:
    """A slab. A record is known by its address."""
    cdef Slab slab
    cdef size_t size

    def __cinit__(self, size_t size):
        self.size = size
        slab_init(&self.slab, size)

    def __dealloc__(self):
        slab_clear(&self.slab)

    def reserve(self, size_t count):
        return slab_reserve(&self.slab, count)

    def take(self):
        """pre: a spare record exists"""
        return <size_t> slab_take(&self.slab)

    def give(self, size_t record):
        slab_give(&self.slab, <void*> record)

    def fill(self, size_t record, int byte):
        memset(<void*> record, byte, self.size)

    def content(self, size_t record):
        return (<char*> record)[:self.size]

    def clear(self):
        slab_clear(&self.slab)

    @property
    def spare(self):
        return self.slab.spare_count


cdef class Numbers:
    """An array that grows."""
    cdef uint64_t* numbers
    cdef size_t room
    cdef readonly size_t count

    def __dealloc__(self):
        free(self.numbers)

    def extend(self, list more):
        if not make_room_for(<void**> &self.numbers, &self.room, self.count + len(more), sizeof(uint64_t)):
            raise MemoryError
        for number in more:
            self.numbers[self.count] = number
            self.count += 1

    def content(self):
        return [self.numbers[i] for i in range(self.count)]

    @property
    def room(self):
        return self.room


cdef class Guarded:
    """A number behind a lock; `add` releases the interpreter lock, so that threads meet only at this lock."""
    cdef Lock lock
    cdef readonly long number

    def try_it(self):
        return lock_try(&self.lock)

    def give(self):
        lock_give(&self.lock)

    def is_mine(self):
        return lock_is_mine(&self.lock)

    def allow_bias(self):
        """Whether this system has what a bias needs."""
        lock_allow_bias(&self.lock)
        return self.lock.bias.favored == COUNTING

    def until_favored(self):
        """Acquire it as often as the bias takes."""
        for _ in range(SUCCESSION):
            assert lock_try(&self.lock)
            lock_give(&self.lock)
        assert self.is_favored()

    def is_favored(self):
        return self.lock.bias.favored > COUNTING and self.lock.bias.favored & 1 == 0

    def take_word(self):
        """The first step of a thread that is not favored; it has not yet looked whether the favored one is inside."""
        return allotment_lock_take(&self.lock.word)

    def forget_other_threads(self):
        lock_forget_other_threads(&self.lock)

    def lend(self):
        lock_lend(&self.lock)

    def reclaim(self):
        with nogil:
            lock_reclaim(&self.lock)

    def away(self):
        """Return how many threads have lent it."""
        return self.lock.word >> 1

    def wait(self):
        with nogil:
            lock_wait(&self.lock)

    def add(self, long times):
        cdef long _turn
        with nogil:
            for _turn in range(times):
                lock_wait(&self.lock)
                self.number += 1        # not atomic: two threads at once would lose an increment
                lock_give(&self.lock)

    def add_around_unlocked_sections(self, long times):
        cdef long _turn
        with nogil:
            for _turn in range(times):
                lock_wait(&self.lock)
                self.number += 1
                lock_lend(&self.lock)
                lock_reclaim(&self.lock)
                self.number += 1
                lock_give(&self.lock)
