cimport cython
from cpython.pystate cimport PyThreadState
from libc.stdlib cimport calloc, free as free_memory

from allotment._allocators.pinned.memory cimport PinnedMemory, timing_dict
from allotment._core.contract.current cimport current_stream
from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport INVALID, NOT_READY, OK, OUT_OF_MEMORY, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, count_t, event_t, stream_t
from allotment._core.model.model cimport drop_t, filter_t
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.forks cimport LONG_LOCK, guard_forks, unguard_forks
from allotment._core.tools.interpreter cimport interpreter_ends, let_interpreter_go, take_interpreter_back
from allotment._core.tools.lock cimport lock_give, lock_is_mine, lock_try, lock_wait, lock_wait_outside
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve
from allotment._core.tools.weak_references cimport clear_weak_references_first

import warnings

from allotment._allocators.pinned.background import Background
from allotment.errors import AddressError, InvariantError, RequestError

cdef enum:
    PER_THREAD_STREAM = 2       # of CUDA: one number for many streams; only the calling thread can record on its own

cdef stream_t NO_STREAM = ~<stream_t> 0


cdef inline int class_of(bytes_t size) noexcept nogil:
    """ceil(log2 size). pre: size > 0"""
    cdef int found = 0
    while (<bytes_t> 1 << found) < size:
        found += 1
    return found


cdef inline void count_up(Count* count, count_t amount) noexcept nogil:
    count.current += amount
    count.allocated += amount
    if count.current > count.peak:
        count.peak = count.current


cdef inline void count_down(Count* count, count_t amount) noexcept nogil:
    count.current -= amount
    count.freed += amount


cdef inline bint failed(Fault* fault, Reason reason) noexcept nogil:
    fault.reason = reason
    return False


cdef inline bint refused(Fault* fault, status_t status, const char* operation) noexcept nogil:
    fault.reason = DEVICE_SAID_NO
    fault.status = status
    fault.operation = operation
    return False


cdef bint add_stream(PinnedBlock* block, stream_t stream) noexcept nogil:
    """Return False if the host has no memory for it."""
    cdef size_t place
    for place in range(block.stream_count):
        if block.streams[place] == stream:
            return True
    if not make_room(<void**> &block.streams, &block.stream_room, block.stream_count, sizeof(stream_t)):
        return False
    block.streams[block.stream_count] = stream
    block.stream_count += 1
    return True


cdef void drop_stream(PinnedBlock* block, size_t place) noexcept nogil:
    block.stream_count -= 1
    block.streams[place] = block.streams[block.stream_count]


cdef void push(PinnedBlock* block) noexcept nogil:
    block.next = block.pool.kept[block.size_class]
    block.pool.kept[block.size_class] = block


cdef PinnedBlock* oldest_first(PinnedBlock* block) noexcept nogil:
    """Reverse the list: PyTorch releases first the block that was freed first."""
    cdef PinnedBlock* turned = NULL
    cdef PinnedBlock* following
    while block != NULL:
        following = block.next
        block.next = turned
        turned = block
        block = following
    return turned


cdef Wait* new_wait(stream_t stream) noexcept nogil:
    cdef Wait* wait = <Wait*> calloc(1, sizeof(Wait))
    if wait != NULL:
        wait.stream = stream
    return wait


cdef void drop_wait(Wait* wait) noexcept nogil:
    free_memory(wait.blocks)
    free_memory(wait)


cdef Wait* loose_wait(PinnedPool* pool, stream_t stream) noexcept nogil:
    """Return the list with room for one block more; NULL if the host has no memory for it."""
    cdef Wait* wait = pool.loose
    while wait != NULL and wait.stream != stream:
        wait = wait.next
    if wait == NULL:
        wait = new_wait(stream)
        if wait == NULL:
            return NULL
        wait.next = pool.loose
        pool.loose = wait
    return wait if make_room(<void**> &wait.blocks, &wait.room, wait.count, sizeof(PinnedBlock*)) else NULL


cdef void add_loose(PinnedPool* pool, PinnedBlock* block, stream_t stream) noexcept nogil:
    """pre: `loose_wait` has reserved the room"""
    cdef Wait* wait = loose_wait(pool, stream)
    wait.blocks[wait.count] = block
    wait.count += 1


cdef void put_back_first(PinnedPool* pool, Wait* wait) noexcept nogil:
    wait.next = pool.oldest
    pool.oldest = wait
    if pool.newest == NULL:
        pool.newest = wait


cdef Wait* take_oldest(PinnedPool* pool) noexcept nogil:
    cdef Wait* wait = pool.oldest
    if wait != NULL:
        pool.oldest = wait.next
        if pool.oldest == NULL:
            pool.newest = NULL
        wait.next = NULL
    return wait


cdef class PinnedBlocks:
    """PinnedBlocks(memory, settings)\n--\n
    Blocks in PyTorch's manner: see the header. Users hold a `PinnedAllocator`.
    """

    def __cinit__(self, PinnedMemory memory, settings: Settings):
        self.memory = memory
        self.device = memory.device
        self.most_kept = settings.pinned_max_cached_size
        self.most_rounded = min(self.most_kept, <bytes_t> settings.pinned_max_round_threshold)
        self.catches_all = settings.pinned_free_catch_all
        self.looks_in_background = settings.pinned_use_background_threads
        if not map_init(&self.by_address):
            raise MemoryError("the host has no memory for the records of pinned memory")
        guard_forks(&self.fork_guard, LONG_LOCK, &self.lock)

    def __dealloc__(self):
        cdef size_t place
        cdef PinnedBlock* block
        cdef PinnedPool* pool = &self.default_pool
        cdef PinnedPool* following
        unguard_forks(&self.fork_guard)
        if self.by_address.slots != NULL:
            for place in range(self.by_address.mask + 1):
                if self.by_address.slots[place].key != 0:
                    block = <PinnedBlock*> self.by_address.slots[place].value
                    free_memory(block.streams)
                    free_memory(block)
            map_clear(&self.by_address)
        free_memory(self.spare_events)
        while pool != NULL:
            following = pool.next
            drop_waits(pool.loose)
            drop_waits(pool.oldest)
            if pool != &self.default_pool:
                free_memory(pool)
            pool = following

    # --- the lock ---

    cdef bint enter(self, Fault* fault) noexcept nogil:
        if lock_try(&self.lock):
            return True
        if lock_is_mine(&self.lock):
            return failed(fault, CALLED_FROM_INSIDE)
        lock_wait_outside(&self.lock)
        return True

    cdef void leave(self) noexcept nogil:
        """First do the frees that came from inside; the next events cover their streams."""
        cdef PinnedBlock* block
        cdef Fault ignored
        while self.freed_inside != NULL:
            block = self.freed_inside
            self.freed_inside = block.next
            block.next = NULL
            block.freed_inside = False
            block.lent = True
            if not self.free_inside(block.address, NULL, 0, &ignored):
                block.lent, block.awaited = False, 1        # out of reach, because the streams that use it are unknown
        lock_give(&self.lock)

    cdef PyThreadState* begin_unlocked(self) noexcept nogil:
        """Release the lock, and the interpreter lock if this thread holds it, before a step that may wait."""
        lock_give(&self.lock)
        return let_interpreter_go()

    cdef void end_unlocked(self, PyThreadState* unlocked) noexcept nogil:
        lock_wait(&self.lock)
        take_interpreter_back(unlocked)

    # --- requests and frees ---

    cdef address_t serve(self, bytes_t size, Fault* fault) noexcept nogil:
        """pre: size > 0"""
        cdef address_t address
        if self.looks_in_background and not self.has_background:
            start_background(self)
        if not self.enter(fault):
            return 0
        address = self.serve_inside(size, fault)
        self.leave()
        return address

    cdef address_t serve_inside(self, bytes_t size, Fault* fault) noexcept nogil:
        cdef stream_t current = self.current()
        cdef PinnedPool* pool = self.pool_for(current)
        cdef PinnedBlock* block
        cdef PinnedBlock** link
        cdef int size_class, in_capture = 0
        cdef bint looks = not self.looks_in_background or pool != &self.default_pool
        if (pool.loose != NULL or (looks and pool.oldest != NULL)) and not self.process(pool, fault):
            return 0
        if current != NO_STREAM:
            in_capture = self.is_capturing(current, fault)
            if in_capture < 0:
                return 0
        size_class = class_of(size)
        if size <= self.most_rounded:
            size = <bytes_t> 1 << size_class
        fault.size = size
        link = &pool.kept[size_class]
        while link[0] != NULL and link[0].size < size:
            link = &link[0].next
        block = link[0]
        if block != NULL:
            link[0] = block.next
        else:
            block = self.obtain(size, size_class, pool, fault)
            if block == NULL:
                return 0
        block.next = NULL
        block.lent = True
        block.in_capture = in_capture
        count_up(&self.active[size_class], 1)
        count_up(&self.active_bytes[size_class], block.size)
        self.notify(PINNED_ALLOCATED, block)
        return block.address

    cdef bint free(self, address_t address, const stream_t* streams, size_t count, Fault* fault) noexcept nogil:
        cdef PinnedBlock* block
        cdef size_t place
        cdef bint ok
        if self.enter(fault):
            ok = self.free_inside(address, streams, count, fault)
            self.leave()
            return ok
        block = self.lent_block(address, fault)
        if block == NULL:
            return False
        for place in range(count):
            if not add_stream(block, streams[place]):
                return failed(fault, NO_RECORDS)
        block.lent = False
        block.freed_inside = True
        block.next = self.freed_inside
        self.freed_inside = block
        return True

    cdef bint free_inside(self, address_t address, const stream_t* streams, size_t count, Fault* fault) noexcept nogil:
        cdef PinnedBlock* block = self.lent_block(address, fault)
        cdef size_t place, before
        cdef stream_t stream
        cdef Wait* own
        cdef int capturing
        if block == NULL:
            return False
        before = block.stream_count
        for place in range(count):
            if not add_stream(block, streams[place]):
                block.stream_count = before
                return failed(fault, NO_RECORDS)
        self.notify(PINNED_FREE_REQUESTED, block)
        if block.stream_count == 0:
            block.lent = False
            self.keep(block)
            return True
        if block.in_capture:
            # A graph's copies have no fixed time: the block waits for an event that never comes.
            block.lent = False
            block.awaited = 1
            block.stream_count = 0
            return True
        for place in range(block.stream_count):
            stream = block.streams[place]
            if loose_wait(block.pool, stream) == NULL:
                block.stream_count = before
                return failed(fault, NO_RECORDS)
        place = block.stream_count
        while place > 0:
            place -= 1
            capturing = self.is_capturing(block.streams[place], fault)
            if capturing < 0:
                block.stream_count = before
                return False
            if capturing:                       # memory that a graph copies must outlive the graph
                drop_stream(block, place)
                before = min(before, block.stream_count)
        block.awaited = block.stream_count
        block.lent = False
        if block.stream_count == 0:
            self.keep(block)
            return True
        for place in range(block.stream_count):
            if block.streams[place] == PER_THREAD_STREAM:
                own = new_wait(PER_THREAD_STREAM)
                if own == NULL or not make_room(<void**> &own.blocks, &own.room, 0, sizeof(PinnedBlock*)):
                    free_memory(own)
                    block.lent, block.awaited, block.stream_count = True, 0, before
                    return failed(fault, NO_RECORDS)
                own.blocks[0] = block
                own.count = 1
                capturing = self.record(block.pool, own, fault)
                if capturing < 0:
                    drop_wait(own)
                    block.lent, block.awaited, block.stream_count = True, 0, before
                    return False
                if capturing == 0:              # meanwhile a capture has begun
                    own.next = block.pool.loose
                    block.pool.loose = own
                drop_stream(block, place)
                break
        for place in range(block.stream_count):
            add_loose(block.pool, block, block.streams[place])
        block.stream_count = 0
        if self.records_at_once:
            # After a failure the block stays out of reach until a later request succeeds in recording the event.
            self.record_loose(block.pool, fault)
        if self.has_background:
            wake_background(self)
        return True

    cdef PinnedBlock* lent_block(self, address_t address, Fault* fault) noexcept nogil:
        cdef PinnedBlock* block = <PinnedBlock*> map_get(&self.by_address, address)
        if block != NULL and block.lent:
            return block
        fault.reason = NOT_LENT
        fault.address = address
        return NULL

    cdef bint is_lent(self, address_t address) noexcept nogil:
        cdef Fault ignored
        cdef bint found
        if not self.enter(&ignored):
            return self.lent_block(address, &ignored) != NULL
        found = self.lent_block(address, &ignored) != NULL
        self.leave()
        return found

    cdef bint use(self, address_t address, stream_t stream, Fault* fault) noexcept nogil:
        """Record that another stream copies from or to a block."""
        cdef PinnedBlock* block
        cdef bint ok
        if not self.enter(fault):
            return False
        block = self.lent_block(address, fault)
        ok = block != NULL and (add_stream(block, stream) or failed(fault, NO_RECORDS))
        self.leave()
        return ok

    cdef stream_t current(self) noexcept nogil:
        """Return the calling thread's current stream, if it can matter; only Allotment or a framework can have set one.
        """
        if self.framework_stream != NULL:
            return self.framework_stream(self.device.device) if self.routes != NULL else NO_STREAM
        return current_stream(self.device.serial, NO_STREAM)

    cdef void keep(self, PinnedBlock* block) noexcept nogil:
        cdef Fault fault
        self.notify(PINNED_FREE_COMPLETED, block)
        count_down(&self.active[block.size_class], 1)
        count_down(&self.active_bytes[block.size_class], block.size)
        if block.size <= self.most_kept:
            push(block)
        elif not self.release(block, &fault):
            warn_that_it_stays(self, &fault)

    cdef void notify(self, int action, const PinnedBlock* block) noexcept nogil:
        if self.listener != NULL:
            self.listener(self.listening, action, block.address, block.size, block.pool.first, block.pool.second)

    # --- pools ---

    cdef PinnedPool* pool_for(self, stream_t current) noexcept nogil:
        cdef PinnedRoute* route = self.routes
        while route != NULL:
            if route.accepts == NULL or route.accepts(route.self, current):
                return route.pool
            route = route.next
        return &self.default_pool

    cdef PinnedPool* find_pool(self, uint64_t first, uint64_t second) noexcept nogil:
        cdef PinnedPool* pool = self.default_pool.next
        while pool != NULL and (pool.first != first or pool.second != second):
            pool = pool.next
        return pool

    cdef bint begin_routing(self, uint64_t first, uint64_t second, filter_t accepts, drop_t drop, void* self_,
                            Fault* fault) noexcept nogil:
        cdef PinnedPool* pool
        cdef PinnedRoute* route
        cdef PinnedRoute** link = &self.routes
        if not self.enter(fault):
            return False
        pool = self.find_pool(first, second)
        while link[0] != NULL and (pool == NULL or link[0].pool != pool):
            link = &link[0].next
        if link[0] != NULL:
            self.leave()
            return failed(fault, ROUTED_ALREADY)
        route = <PinnedRoute*> calloc(1, sizeof(PinnedRoute))
        if pool == NULL and route != NULL:
            pool = <PinnedPool*> calloc(1, sizeof(PinnedPool))
            if pool != NULL:
                pool.first, pool.second = first, second
                pool.next = self.default_pool.next
                self.default_pool.next = pool
        if pool == NULL or route == NULL:
            free_memory(route)
            self.leave()
            return failed(fault, NO_RECORDS)
        pool.uses += 1
        route.pool, route.accepts, route.drop, route.self = pool, accepts, drop, self_
        link[0] = route
        self.leave()
        return True

    cdef bint end_routing(self, uint64_t first, uint64_t second, Fault* fault) noexcept nogil:
        cdef PinnedRoute** link = &self.routes
        cdef PinnedRoute* route
        if not self.enter(fault):
            return False
        while link[0] != NULL and (link[0].pool.first != first or link[0].pool.second != second):
            link = &link[0].next
        route = link[0]
        if route != NULL:
            link[0] = route.next
        self.leave()
        if route == NULL:
            return failed(fault, NOT_ROUTED)
        if route.drop != NULL:
            route.drop(route.self)
        free_memory(route)
        return True

    cdef bint release_pool(self, uint64_t first, uint64_t second, Fault* fault) noexcept nogil:
        cdef PinnedPool* pool
        cdef bint ok
        if not self.enter(fault):
            return False
        pool = self.find_pool(first, second)
        ok = pool != NULL and pool.uses > 0
        if ok:
            pool.uses -= 1
        self.leave()
        return ok or failed(fault, NO_SUCH_POOL)

    cdef void drop_ended_pools(self) noexcept nogil:
        cdef PinnedPool** link = &self.default_pool.next
        cdef PinnedPool* pool
        while link[0] != NULL:
            pool = link[0]
            if pool.uses == 0 and pool.blocks == 0 and not pool.processing:
                link[0] = pool.next
                drop_waits(pool.loose)          # no blocks are left
                free_memory(pool)
            else:
                link = &pool.next

    # --- the device ---

    cdef PinnedBlock* obtain(self, bytes_t size, int size_class, PinnedPool* pool, Fault* fault) noexcept nogil:
        cdef PinnedBlock* block = <PinnedBlock*> calloc(1, sizeof(PinnedBlock))
        cdef bint ok
        if block == NULL or not map_reserve(&self.by_address, 1):
            free_memory(block)
            failed(fault, NO_RECORDS)
            return NULL
        pool.blocks += 1                        # the pool stays alive while the lock is released
        ok = self.ask(size, &block.address, fault)
        if not ok and fault.reason == NO_PINNED_MEMORY:
            ok = self.await_all(fault) and self.empty_all(fault) and self.ask(size, &block.address, fault)
        if ok and not map_reserve(&self.by_address, 1):        # other threads may have entered meanwhile
            self.memory.release(block.address)
            ok = failed(fault, NO_RECORDS)
        if not ok:
            pool.blocks -= 1
            free_memory(block)
            return NULL
        block.size = size
        block.size_class = size_class
        block.pool = pool
        map_put(&self.by_address, block.address, block)
        count_up(&self.owned, 1)
        count_up(&self.owned_bytes, size)
        count_up(&self.buckets[size_class], 1)
        self.notify(PINNED_OBTAINED, block)
        return block

    cdef bint ask(self, bytes_t size, address_t* address, Fault* fault) noexcept nogil:
        cdef PyThreadState* unlocked
        cdef status_t status = OUT_OF_MEMORY
        if not self.limited or <bytes_t> self.owned_bytes.current + self.asked + size <= self.limit:
            self.asked = self.asked + size
            unlocked = self.begin_unlocked()
            status = self.memory.obtain(size, address)
            self.end_unlocked(unlocked)
            self.asked = self.asked - size
        if status == OK:
            return True
        if status == OUT_OF_MEMORY:
            return failed(fault, NO_PINNED_MEMORY)
        return refused(fault, status, b"pinned_allocate")

    cdef bint release(self, PinnedBlock* block, Fault* fault) noexcept nogil:
        """Return a block to the device; a block that the device refuses is kept. pre: on no list"""
        cdef PyThreadState* unlocked
        cdef status_t status
        if self.memory.is_reserved(block.address):
            push(block)                         # memory of the reserve is never returned
            return True
        map_pop(&self.by_address, block.address)        # before another thread can get the address
        unlocked = self.begin_unlocked()
        status = self.memory.release(block.address)
        self.end_unlocked(unlocked)
        if status != OK and not self.catches_all:
            if map_reserve(&self.by_address, 1):        # otherwise the block is lost: no map has its address
                map_put(&self.by_address, block.address, block)
                push(block)
            return refused(fault, status, b"pinned_free")
        self.notify(PINNED_RETURNED, block)
        count_down(&self.owned, 1)
        count_down(&self.owned_bytes, block.size)
        count_down(&self.buckets[block.size_class], 1)
        block.pool.blocks -= 1
        free_memory(block.streams)
        free_memory(block)
        return True

    cdef bint empty(self, Fault* fault) noexcept nogil:
        """Release all blocks that no stream can touch any more."""
        cdef bint ok
        if not self.enter(fault):
            return False
        ok = self.empty_all(fault)
        self.leave()
        return ok

    cdef bint empty_all(self, Fault* fault) noexcept nogil:
        """Release blocks of the default pool, and of pools without users."""
        cdef PinnedPool* pool = &self.default_pool
        cdef bint ok = True
        while pool != NULL and ok:
            if pool.uses == 0:
                ok = self.process(pool, fault) and self.empty_pool(pool, fault)
            pool = pool.next
        self.drop_ended_pools()
        return ok

    cdef bint empty_pool(self, PinnedPool* pool, Fault* fault) noexcept nogil:
        cdef PinnedBlock* block
        cdef PinnedBlock* following
        cdef int size_class
        cdef bint ok = True
        pool.uses += 1                          # the pool stays while the lock is released
        for size_class in range(CLASS_COUNT):
            block = oldest_first(pool.kept[size_class])
            pool.kept[size_class] = NULL
            while block != NULL:
                following = block.next
                if ok:
                    ok = self.release(block, fault)
                else:
                    push(block)
                block = following
        pool.uses -= 1
        return ok

    # --- events ---

    cdef int is_capturing(self, stream_t stream, Fault* fault) noexcept nogil:
        cdef capture_t capture = 0
        cdef status_t status
        if self.device.capture_status == NULL:
            return 0
        status = self.device.capture_status(self.device.self, stream, &capture)
        if status == INVALID:           # a destroyed stream has left its capture
            return 0
        if status != OK:
            refused(fault, status, b"capture_status")
            return -1
        return capture != 0

    cdef int record(self, PinnedPool* pool, Wait* wait, Fault* fault) noexcept nogil:
        """Queue blocks behind an event of their stream; 0 if it is being captured and can have none, -1 on failure."""
        cdef PyThreadState* unlocked
        cdef status_t status = OK
        cdef int capturing
        if self.device.event_record == NULL:
            self.finish(wait)
            return 1
        capturing = self.is_capturing(wait.stream, fault)
        if capturing != 0:
            return -1 if capturing < 0 else 0
        if self.spare_count > 0:
            self.spare_count = self.spare_count - 1
            wait.event = self.spare_events[self.spare_count]
        else:
            status = self.device.event_create(self.device.self, &wait.event)
            if status != OK:
                refused(fault, status, b"event_create")
                return -1
        status = self.device.event_record(self.device.self, wait.event, wait.stream)
        if status == OK:
            wait.next = NULL
            if pool.newest == NULL:
                pool.oldest = wait
            else:
                pool.newest.next = wait
            pool.newest = wait
            return 1
        keep_event(self, wait.event)
        if status != INVALID or self.device.device_synchronize == NULL:
            refused(fault, status, b"event_record")
            return -1
        pool.uses += 1
        unlocked = self.begin_unlocked()      # its stream is gone, but the stream's work may still be in progress
        status = self.device.device_synchronize(self.device.self)
        self.end_unlocked(unlocked)
        pool.uses -= 1
        if status != OK:
            refused(fault, status, b"device_synchronize")
            return -1
        self.finish(wait)
        return 1

    cdef bint record_loose(self, PinnedPool* pool, Fault* fault) noexcept nogil:
        cdef Wait* rest = pool.loose
        cdef Wait* wait
        cdef int recorded
        cdef bint ok = True
        pool.loose = NULL
        while rest != NULL:
            wait = rest
            rest = wait.next
            wait.next = NULL
            if wait.count == 0:
                drop_wait(wait)
                continue
            recorded = self.record(pool, wait, fault) if ok else 0
            if recorded <= 0:
                ok = ok and recorded == 0
                wait.next = pool.loose
                pool.loose = wait
        return ok

    cdef void finish(self, Wait* wait) noexcept nogil:
        """An event of these blocks is done."""
        cdef PinnedBlock* block
        cdef size_t place
        for place in range(wait.count):
            block = wait.blocks[place]
            block.awaited -= 1
            if block.awaited == 0:
                self.keep(block)
        drop_wait(wait)

    cdef bint process(self, PinnedPool* pool, Fault* fault) noexcept nogil:
        """Cache the blocks whose events are done, oldest first, up to the first event that is not."""
        cdef Wait* wait
        cdef status_t status
        cdef bint ok = True
        if pool.processing:
            return True
        pool.processing = True
        if pool.loose != NULL:
            ok = self.record_loose(pool, fault)
        while ok:
            wait = take_oldest(pool)
            if wait == NULL:
                break
            status = self.device.event_query(self.device.self, wait.event)
            if status != OK:
                put_back_first(pool, wait)
                ok = status == NOT_READY or refused(fault, status, b"event_query")
                break
            keep_event(self, wait.event)
            self.finish(wait)
        pool.processing = False
        return ok

    cdef bint await_all(self, Fault* fault) noexcept nogil:
        """Wait for all queued events."""
        cdef PinnedPool* pool = &self.default_pool
        cdef bint ok = True
        while pool != NULL and ok:
            pool.uses += 1
            ok = self.await_pool(pool, fault)
            pool.uses -= 1
            pool = pool.next
        return ok

    cdef bint await_pool(self, PinnedPool* pool, Fault* fault) noexcept nogil:
        cdef Wait* wait
        cdef PyThreadState* unlocked
        cdef status_t status
        if not self.record_loose(pool, fault):
            return False
        while True:
            wait = take_oldest(pool)
            if wait == NULL:
                return True
            unlocked = self.begin_unlocked()
            status = self.device.event_synchronize(self.device.self, wait.event)
            self.end_unlocked(unlocked)
            if status != OK:
                put_back_first(pool, wait)
                return refused(fault, status, b"event_synchronize")
            keep_event(self, wait.event)
            self.finish(wait)

    # --- for a framework ---

    cdef void listen(self, pinned_listener_t listener, void* listening) noexcept nogil:
        cdef Fault ignored
        if self.enter(&ignored):
            self.listener, self.listening = listener, listening
            self.leave()

    cdef void follow(self, stream_t (*current)(int device) noexcept nogil) noexcept nogil:
        """Decide as PyTorch's own code does: by its current stream, with an event at each free."""
        self.framework_stream = current
        self.records_at_once = True

    # --- for Python ---

    def process_events(self) -> bool:
        """Variant of `process` for the background thread; return whether any block still waits."""
        cdef Fault fault
        cdef bint ok, waits
        if not self.enter(&fault):
            return True
        ok = self.process(&self.default_pool, &fault)
        waits = self.default_pool.oldest != NULL or self.default_pool.loose != NULL
        self.leave()
        if not ok:
            self.raise_fault(&fault)
        return waits

    def close(self) -> None:
        """Release all blocks that are not in use, after waiting for copies."""
        cdef Fault fault
        cdef status_t status = OK
        cdef bint ok
        with cython.critical_section(self):
            background, self.background = self.background, None
            self.has_background = False
        if background is not None:
            background.stop()
        if not self.enter(&fault):
            self.raise_fault(&fault)
        ok = self.await_all(&fault) and self.empty_all(&fault)
        while ok and self.spare_count > 0:
            self.spare_count -= 1
            status = self.device.event_destroy(self.device.self, self.spare_events[self.spare_count])
            ok = status == OK or refused(&fault, status, b"event_destroy")
        self.leave()
        if not ok:
            self.raise_fault(&fault)

    cdef int raise_fault(self, const Fault* fault) except -1:
        if fault.reason == NO_PINNED_MEMORY:
            limit = f", of at most {self.limit}" if self.limited else ""
            raise MemoryError(
                f"out of pinned memory on {self.memory.inner.name}: {fault.size} bytes were requested,"
                f" {self.active_now()} are in use{limit}; free some")
        if fault.reason == NO_RECORDS:
            raise MemoryError("the host has no memory for the records of pinned memory")
        if fault.reason == NOT_LENT:
            raise AddressError(
                f"invalid pinned address: {fault.address:#x} was never allocated from {self.memory.name}, or has been"
                " freed", fault.address)
        if fault.reason == CALLED_FROM_INSIDE:
            raise RequestError(f"{self.memory.name} was called from inside itself, by its device; it may only free")
        if fault.reason == DEVICE_SAID_NO:
            error, self.memory.last_error = self.memory.last_error, None
            if error is not None:
                raise error
            raise device_error(self.memory.inner, fault.status, fault.operation.decode())
        raise RequestError(pool_words(fault.reason))

    # --- figures ---

    cdef count_t active_now(self) noexcept nogil:
        cdef count_t total = 0
        cdef int size_class
        for size_class in range(CLASS_COUNT):
            total += self.active_bytes[size_class].current
        return total

    cdef bint visit(self, pinned_visit_t visit, void* visiting) noexcept nogil:
        """Return all blocks; those that cannot be allocated now are active."""
        cdef Fault ignored
        cdef PinnedBlock* block
        cdef size_t place
        if not self.enter(&ignored):
            return False
        for place in range(self.by_address.mask + 1):
            if self.by_address.slots[place].key != 0:
                block = <PinnedBlock*> self.by_address.slots[place].value
                visit(visiting, block.address, block.size, block.lent, block.lent or block.awaited > 0,
                      block.pool.first, block.pool.second)
        self.leave()
        return True

    def around(self, address_t address) -> tuple[int, int] | None:
        """Return (start, size) of the block in use that contains an address, or None."""
        cdef PinnedBlock* block
        cdef size_t place
        cdef address_t start = 0
        cdef bytes_t size = 0
        cdef Fault ignored
        if not self.enter(&ignored):
            return None
        for place in range(self.by_address.mask + 1):
            if self.by_address.slots[place].key != 0:
                block = <PinnedBlock*> self.by_address.slots[place].value
                if block.lent and block.address <= address < block.address + block.size:
                    start, size = block.address, block.size
                    break
        self.leave()
        return (start, size) if start != 0 else None

    def figures(self) -> dict[str, Any]:
        """Return all counters by metric."""
        cdef int size_class
        cdef dict sums = {}
        for name, counts in (("active_requests", False), ("active_bytes", True)):
            total = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
            for size_class in range(CLASS_COUNT):
                one = count_dict(&self.active_bytes[size_class] if counts else &self.active[size_class])
                for key in total:
                    total[key] += one[key]
            sums[name] = total
        return {
            "allocations": count_dict(&self.owned),
            "allocated_bytes": count_dict(&self.owned_bytes),
            **sums,
            "num_host_alloc": self.owned.allocated,
            "num_host_free": self.owned.freed,
            "host_alloc_time": timing_dict(&self.memory.obtaining),
            "host_free_time": timing_dict(&self.memory.releasing),
            "bucket_allocation": {
                str(size_class): count_dict(&self.buckets[size_class])
                for size_class in range(CLASS_COUNT) if self.buckets[size_class].allocated
            },
        }

    def check_figures(self) -> None:
        """Raise InvariantError if the counters disagree with the blocks, or a list holds a wrong block."""
        cdef PinnedBlock* block
        cdef size_t place
        cdef int size_class
        cdef PinnedPool* pool = &self.default_pool
        cdef count_t owned = 0, lent = 0, kept = 0, waiting = 0, active = 0
        for place in range(self.by_address.mask + 1):
            if self.by_address.slots[place].key != 0:
                block = <PinnedBlock*> self.by_address.slots[place].value
                owned += block.size
                lent += block.lent
                waiting += block.awaited > 0
        for size_class in range(CLASS_COUNT):
            active += self.active[size_class].current
        while pool != NULL:
            for size_class in range(CLASS_COUNT):
                block = pool.kept[size_class]
                while block != NULL:
                    if block.lent or block.awaited or block.size_class != size_class or block.pool != pool:
                        raise InvariantError(
                            "kept blocks",
                            f"{block.address:#x} is on a free list, and in use or of another size class or pool")
                    kept += 1
                    block = block.next
            pool = pool.next
        if owned != self.owned_bytes.current or active != lent + waiting:
            raise InvariantError(
                "figures of pinned memory", f"{self.owned_bytes.current} bytes and {active} active blocks counted, "
                f"{owned} and {lent + waiting} found")
        if lent + waiting + kept != <count_t> self.by_address.count:
            raise InvariantError("places of pinned blocks", f"{self.by_address.count} blocks, {kept} of them kept")

    cdef void reset_peaks(self) noexcept nogil:
        """Reset the peaks to the current values."""
        cdef int size_class
        self.owned.peak, self.owned_bytes.peak = self.owned.current, self.owned_bytes.current
        for size_class in range(CLASS_COUNT):
            self.active[size_class].peak = self.active[size_class].current
            self.active_bytes[size_class].peak = self.active_bytes[size_class].current
            self.buckets[size_class].peak = self.buckets[size_class].current
        self.memory.obtaining.shortest = self.memory.obtaining.longest = 0
        self.memory.releasing.shortest = self.memory.releasing.longest = 0

    cdef void reset_sums(self) noexcept nogil:
        """Restart the sums of all allocations and frees at 0."""
        cdef int size_class
        self.owned.allocated = self.owned.freed = self.owned_bytes.allocated = self.owned_bytes.freed = 0
        for size_class in range(CLASS_COUNT):
            self.active[size_class].allocated = self.active[size_class].freed = 0
            self.active_bytes[size_class].allocated = self.active_bytes[size_class].freed = 0
            self.buckets[size_class].allocated = self.buckets[size_class].freed = 0
        self.memory.obtaining.total = self.memory.obtaining.count = 0
        self.memory.releasing.total = self.memory.releasing.count = 0


clear_weak_references_first(PinnedBlocks)


cdef dict count_dict(const Count* count):
    return {"current": count.current, "peak": count.peak, "allocated": count.allocated, "freed": count.freed}

cdef void drop_waits(Wait* wait) noexcept nogil:
    cdef Wait* following
    while wait != NULL:
        following = wait.next
        drop_wait(wait)
        wait = following


cdef void keep_event(PinnedBlocks blocks, event_t event) noexcept nogil:
    """Reserve room for the block's next free; without memory for that, the block returns to the device."""
    if not make_room(<void**> &blocks.spare_events, &blocks.spare_room, blocks.spare_count, sizeof(event_t)):
        blocks.device.event_destroy(blocks.device.self, event)
        return
    blocks.spare_events[blocks.spare_count] = event
    blocks.spare_count = blocks.spare_count + 1


cdef const char* pool_words(Reason reason) noexcept nogil:
    """Return the error in PyTorch's words, which PyTorch's captures expect."""
    if reason == ROUTED_ALREADY:
        return b"beginAllocateToPool: already recording to mempool_id"
    if reason == NOT_ROUTED:
        return b"endAllocatePool: not currently recording to mempool_id"
    return b"no private pool of pinned memory has this id"


cdef void start_background(PinnedBlocks blocks) noexcept with gil:
    if interpreter_ends():
        return
    with cython.critical_section(blocks):
        if blocks.has_background:       # another thread was faster
            return
        blocks.has_background = True
    try:
        background = Background(blocks)
        with cython.critical_section(blocks):
            blocks.background = background
    except RuntimeError as error:       # no thread can be started: requests poll themselves
        blocks.looks_in_background = blocks.has_background = False
        warn(f"pinned memory is not polled in the background: {error}")


cdef void wake_background(PinnedBlocks blocks) noexcept with gil:
    if interpreter_ends():
        return
    with cython.critical_section(blocks):
        background = blocks.background
    if background is not None:
        background.wake()


cdef void warn_that_it_stays(PinnedBlocks blocks, const Fault* fault) noexcept with gil:
    if not interpreter_ends():
        warn(f"pinned memory stays cached: {device_error(blocks.memory.inner, fault.status, fault.operation.decode())}")


cdef void warn(str text) noexcept:
    try:
        warnings.warn(text, stacklevel=2)
    except Warning:                     # warnings are errors here, and no caller can catch this one
        pass
