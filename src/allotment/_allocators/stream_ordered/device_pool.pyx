"""Allocates from a device's own pool and frees to it."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._core.contract.table cimport INVALID, OK, OUT_OF_MEMORY, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, event_t, stream_t
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.forks cimport SHORT_LOCK, ForkGuard, guard_forks, unguard_forks
from allotment._core.tools.lock cimport allotment_owner_get, allotment_owner_set, lock_give, lock_try, lock_wait
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve
from allotment._core.tools.slab cimport slab_clear, slab_give, slab_init, slab_reserve, slab_take

cdef struct Routing:
    Lock lock
    uint64_t under_way      # number of the current capture, 0 if none; read without the lock
    uint64_t count          # of captures so far
    size_t users            # pools to which it was announced
    DeviceTable* device     # the device of the capture; its handle is 0 if unknown
    capture_t handle
    uint64_t first, second  # the id with which it was announced

cdef Routing routing
cdef ForkGuard routing_guard

guard_forks(&routing_guard, SHORT_LOCK, &routing.lock)


cdef inline void enter(Lock* lock) noexcept nogil:
    if not lock_try(lock):
        lock_wait(lock)


cdef inline uint64_t present_capture() noexcept nogil:
    return allotment_owner_get(&routing.under_way)


cdef PoolOutcome refused(PoolRefusal* refusal, status_t status, const char* operation) noexcept nogil:
    refusal.status = status
    refusal.operation = operation
    return POOL_REFUSED


# --- lists of streams ----------------------------------------------------------------------------------------

cdef bint list_add(StreamList* list, stream_t stream) noexcept nogil:
    """Add a stream unless it is there already; return False if there is no memory for that."""
    cdef size_t i
    for i in range(list.count):
        if list.streams[i] == stream:
            return True
    if not make_room(<void**> &list.streams, &list.room, list.count, sizeof(stream_t)):
        return False
    list.streams[list.count] = stream
    list.count += 1
    return True


cdef void list_clear(StreamList* list) noexcept nogil:
    free(list.streams)
    memset(list, 0, sizeof(StreamList))


# --- the pool as a whole -------------------------------------------------------------------------------------

cdef PoolOutcome pool_open(DevicePool* pool, DeviceTable* device, PoolRefusal* refusal) noexcept nogil:
    cdef status_t status
    memset(pool, 0, sizeof(DevicePool))
    pool.limit = ~(<bytes_t> 0)
    slab_init(&pool.records, sizeof(PoolBlock))
    guard_forks(&pool.fork_guard, SHORT_LOCK, &pool.lock)
    if not map_init(&pool.blocks):
        return POOL_NO_HOST_MEMORY
    status = device.stream_create(device.self, &pool.unifying)
    if status != OK:
        return refused(refusal, status, b"stream_create")
    pool.device = device
    return POOL_DONE


cdef bint pool_is_open(const DevicePool* pool) noexcept nogil:
    return pool.device != NULL and not pool.closing


cdef bint get_in(DevicePool* pool) noexcept nogil:
    """Return False if the pool is closed."""
    cdef bint is_open
    enter(&pool.lock)
    is_open = pool_is_open(pool)
    pool.inside += is_open
    lock_give(&pool.lock)
    return is_open


cdef bint get_out(DevicePool* pool) noexcept nogil:
    """Return False if the pool was closed meanwhile, whose blocks are freed then."""
    cdef bint is_open, is_last
    enter(&pool.lock)
    pool.inside -= 1
    is_open = not pool.closing
    is_last = pool.inside == 0
    lock_give(&pool.lock)
    if is_last and not is_open:
        free_everything(pool)
    return is_open


cdef void pool_retire(DevicePool* pool) noexcept nogil:
    cdef bint is_mine
    enter(&pool.lock)
    is_mine = pool_is_open(pool) and pool.inside == 0
    pool.closing = True
    lock_give(&pool.lock)
    if is_mine:
        free_everything(pool)


cdef void free_everything(DevicePool* pool) noexcept nogil:
    """pre: closing, and no thread is inside"""
    cdef PoolRefusal refusal
    cdef size_t i = 0
    cdef size_t before
    routing_end(pool, routing.first, routing.second)
    catch_up(pool, &refusal)
    while i <= pool.blocks.mask:
        before = pool.blocks.count
        if pool.blocks.slots[i].key != 0:
            give(pool, pool.blocks.slots[i].key, &refusal)
        # The blocks after a removed one move up, so its place must be examined again.
        if pool.blocks.count == before:
            i += 1
    pool.device.stream_destroy(pool.device.self, pool.unifying)
    pool.device = NULL


cdef void pool_clear(DevicePool* pool) noexcept nogil:
    cdef size_t i
    unguard_forks(&pool.fork_guard)
    for i in range(pool.blocks.mask + 1 if pool.blocks.slots != NULL else 0):
        if pool.blocks.slots[i].key != 0:
            list_clear(&(<PoolBlock*> pool.blocks.slots[i].value).uses)
    while pool.postponed != NULL:
        list_clear(&pool.postponed.uses)
        pool.postponed = pool.postponed.next
    list_clear(&pool.freed_on)
    map_clear(&pool.blocks)
    slab_clear(&pool.records)


cdef bint pool_adds_up(DevicePool* pool, bytes_t* used, bytes_t* found) noexcept nogil:
    cdef PoolBlock* block
    cdef bytes_t total = 0
    cdef size_t i
    cdef bint right
    enter(&pool.lock)
    for i in range(pool.blocks.mask + 1):
        if pool.blocks.slots[i].key != 0:
            total += (<PoolBlock*> pool.blocks.slots[i].value).size
    block = pool.postponed
    while block != NULL:
        total += block.size
        block = block.next
    right = total == pool.used if pool.under_way == 0 else total <= pool.used
    used[0], found[0] = pool.used, total
    lock_give(&pool.lock)
    return right


# --- allocating --------------------------------------------------------------------------------------------

cdef PoolOutcome pool_take(DevicePool* pool, bytes_t size, stream_t stream, address_t* address,
                           PoolRefusal* refusal) noexcept nogil:
    cdef PoolOutcome outcome
    if not get_in(pool):
        return POOL_CLOSED
    outcome = take(pool, size, stream, address, refusal)
    return outcome if get_out(pool) else POOL_CLOSED


cdef PoolOutcome take(DevicePool* pool, bytes_t size, stream_t stream, address_t* address,
                      PoolRefusal* refusal) noexcept nogil:
    cdef DeviceTable* device = pool.device
    cdef PoolRefusal unimportant
    cdef PoolBlock* block
    cdef uint64_t capture = present_capture()
    cdef capture_t joined = 0
    cdef bint relaxed
    cdef PoolOutcome outcome
    cdef status_t status = OK
    catch_up(pool, &unimportant)
    if capture != 0 and device.capture_status != NULL:
        status = device.capture_status(device.self, stream, &joined)
        if status != OK:
            return refused(refusal, status, b"capture_status")
    enter(&pool.lock)
    if pool.used > pool.limit or size > pool.limit - pool.used:
        lock_give(&pool.lock)
        return POOL_FULL
    if not slab_reserve(&pool.records, 1) or not map_reserve(&pool.blocks, pool.under_way + 1):
        lock_give(&pool.lock)
        return POOL_NO_HOST_MEMORY
    block = <PoolBlock*> slab_take(&pool.records)
    pool.under_way += 1
    pool.used += size
    lock_give(&pool.lock)

    memset(block, 0, sizeof(PoolBlock))
    block.size = size
    block.stream = stream
    block.capture = capture if joined != 0 else 0
    # On a stream beside the capture, a strict capture forbids its thread to make this call.
    relaxed = capture != 0 and joined == 0 and device.capture_relaxed != NULL
    if relaxed:
        status = device.capture_relaxed(device.self, True)
    if status == OK:
        status = device.ordered_allocate(device.self, size, stream, &block.address)
        if relaxed:
            device.capture_relaxed(device.self, False)

    enter(&pool.lock)
    pool.under_way -= 1
    outcome = POOL_DONE
    if status == OK:
        address[0] = block.address
        if map_get(&pool.blocks, block.address) == NULL:
            map_put(&pool.blocks, block.address, block)
        else:
            outcome = POOL_TAKEN        # another user has it, so it cannot be freed either
    if status != OK or outcome == POOL_TAKEN:
        forget(pool, block)
    lock_give(&pool.lock)
    if outcome == POOL_TAKEN:
        return outcome
    if status == OUT_OF_MEMORY:
        return POOL_FULL
    return POOL_DONE if status == OK else refused(refusal, status, b"ordered_allocate")


cdef void forget(DevicePool* pool, PoolBlock* block) noexcept nogil:
    """pre: locked; the block is in no list"""
    pool.used -= block.size
    list_clear(&block.uses)
    slab_give(&pool.records, block)


cdef PoolOutcome pool_size_of(DevicePool* pool, address_t address, bytes_t* size) noexcept nogil:
    cdef PoolBlock* block
    enter(&pool.lock)
    block = <PoolBlock*> map_get(&pool.blocks, address)
    if block != NULL:
        size[0] = block.size
    lock_give(&pool.lock)
    return POOL_DONE if block != NULL else POOL_NO_SUCH_BLOCK


cdef bint pool_find(DevicePool* pool, address_t address, address_t* start, bytes_t* size) noexcept nogil:
    cdef PoolBlock* block
    cdef size_t i = 0
    cdef bint found
    if pool.device == NULL:
        return False
    enter(&pool.lock)
    block = <PoolBlock*> map_get(&pool.blocks, address)
    while block == NULL and i <= pool.blocks.mask:
        if pool.blocks.slots[i].key != 0 and (
                address - pool.blocks.slots[i].key < (<PoolBlock*> pool.blocks.slots[i].value).size):
            block = <PoolBlock*> pool.blocks.slots[i].value
        i += 1
    found = block != NULL
    if found:
        start[0] = block.address
        size[0] = block.size
    lock_give(&pool.lock)
    return found


cdef PoolOutcome pool_use(DevicePool* pool, address_t address, stream_t stream) noexcept nogil:
    cdef PoolOutcome outcome = POOL_DONE
    cdef PoolBlock* block
    enter(&pool.lock)
    block = <PoolBlock*> map_get(&pool.blocks, address)
    if block == NULL:
        outcome = POOL_NO_SUCH_BLOCK
    elif block.stream == stream:
        outcome = POOL_OWN_STREAM
    elif not list_add(&block.uses, stream):
        outcome = POOL_NO_HOST_MEMORY
    lock_give(&pool.lock)
    return outcome


# --- freeing -----------------------------------------------------------------------------------------------

cdef PoolOutcome pool_give(DevicePool* pool, address_t address, PoolRefusal* refusal) noexcept nogil:
    cdef PoolOutcome outcome
    if not get_in(pool):
        return POOL_CLOSED
    outcome = give(pool, address, refusal)
    get_out(pool)
    return outcome


cdef PoolOutcome give(DevicePool* pool, address_t address, PoolRefusal* refusal) noexcept nogil:
    cdef PoolRefusal unimportant
    cdef PoolOutcome outcome = POOL_DONE
    cdef PoolBlock* block
    cdef uint64_t capture = present_capture()
    catch_up(pool, &unimportant)
    enter(&pool.lock)
    block = <PoolBlock*> map_pop(&pool.blocks, address)
    if block == NULL:
        outcome = POOL_NO_SUCH_BLOCK
    elif capture != 0 and block.capture != capture:
        postpone(pool, block)
        outcome = POOL_POSTPONED
    elif capture != 0 and not list_add(&pool.freed_on, way_out(pool, block)):
        map_put(&pool.blocks, address, block)
        outcome = POOL_NO_HOST_MEMORY
    else:
        pool.under_way += 1
    lock_give(&pool.lock)
    if outcome != POOL_DONE:
        return outcome

    outcome = return_block(pool, block, capture != 0, refusal)

    enter(&pool.lock)
    pool.under_way -= 1
    if outcome == POOL_REFUSED:
        map_put(&pool.blocks, address, block)
    else:
        if block.capture != capture:
            outcome = POOL_DONE_LATE
        forget(pool, block)
    lock_give(&pool.lock)
    return outcome


cdef inline stream_t way_out(DevicePool* pool, const PoolBlock* block) noexcept nogil:
    """Return the stream on which a block is freed."""
    return block.stream if block.uses.count == 0 else pool.unifying


cdef PoolOutcome return_block(DevicePool* pool, PoolBlock* block, bint capturing, PoolRefusal* refusal) noexcept nogil:
    """pre: not locked; the block is in no list"""
    cdef DeviceTable* device = pool.device
    cdef PoolOutcome outcome = await_uses(pool, block, refusal)
    cdef status_t status
    if outcome == POOL_DONE:
        status = device.ordered_free(device.self, block.address, way_out(pool, block))
        if status == OK:
            return POOL_DONE
        outcome = refused(refusal, status, b"ordered_free")
    if refusal.status != INVALID or capturing:
        return outcome
    # One of its streams was destroyed, so that nothing can wait for it separately; its work may still run.
    status = device.device_synchronize(device.self)
    if status != OK:
        return refused(refusal, status, b"device_synchronize")
    status = device.ordered_free(device.self, block.address, pool.unifying)
    if status == INVALID and block.capture != 0:
        return POOL_DONE        # the graph never ran, or is gone together with its memory
    return POOL_DONE if status == OK else refused(refusal, status, b"ordered_free")


cdef PoolOutcome await_uses(DevicePool* pool, const PoolBlock* block, PoolRefusal* refusal) noexcept nogil:
    """Make the unifying stream wait for all streams of a block that other streams have used."""
    cdef PoolOutcome outcome
    cdef size_t i = 0
    if block.uses.count == 0:
        return POOL_DONE
    outcome = let_wait(pool.device, pool.unifying, block.stream, refusal)
    while outcome == POOL_DONE and i < block.uses.count:
        outcome = let_wait(pool.device, pool.unifying, block.uses.streams[i], refusal)
        i += 1
    return outcome


cdef PoolOutcome let_wait(DeviceTable* device, stream_t stream, stream_t other, PoolRefusal* refusal) noexcept nogil:
    """Make a stream wait for the current work of another."""
    cdef event_t event = 0
    cdef PoolOutcome outcome = POOL_DONE
    cdef status_t status = device.event_create(device.self, &event)
    if status != OK:
        return refused(refusal, status, b"event_create")
    status = device.event_record(device.self, event, other)
    if status != OK:
        outcome = refused(refusal, status, b"event_record")
    else:
        status = device.stream_wait(device.self, stream, event)
        if status != OK:
            outcome = refused(refusal, status, b"stream_wait")
    device.event_destroy(device.self, event)    # the device keeps an event for which a stream waits
    return outcome


cdef void postpone(DevicePool* pool, PoolBlock* block) noexcept nogil:
    """pre: locked"""
    block.next = pool.postponed
    pool.postponed = block


cdef PoolOutcome pool_catch_up(DevicePool* pool, PoolRefusal* refusal) noexcept nogil:
    cdef PoolOutcome outcome
    if not get_in(pool):
        return POOL_CLOSED
    outcome = catch_up(pool, refusal)
    get_out(pool)
    return outcome


cdef PoolOutcome catch_up(DevicePool* pool, PoolRefusal* refusal) noexcept nogil:
    cdef PoolOutcome outcome = POOL_DONE
    cdef PoolBlock* block = NULL
    cdef PoolBlock* rest
    cdef PoolRefusal latest
    if present_capture() != 0:
        return POOL_DONE
    enter(&pool.lock)
    rest = pool.postponed
    pool.postponed = NULL
    if rest != NULL:
        pool.under_way += 1
    lock_give(&pool.lock)
    while rest != NULL:
        block = rest
        rest = block.next
        if return_block(pool, block, False, &latest) == POOL_DONE:
            enter(&pool.lock)
            forget(pool, block)
        else:
            refusal[0] = latest
            outcome = POOL_REFUSED
            enter(&pool.lock)
            postpone(pool, block)
        if rest == NULL:
            pool.under_way -= 1
        lock_give(&pool.lock)
    return outcome


# --- captures ------------------------------------------------------------------------------------------------

cdef bint routing_begin(DevicePool* pool, uint64_t first, uint64_t second, capture_t capture) noexcept nogil:
    cdef bint begun
    if not get_in(pool):
        return False
    enter(&routing.lock)
    if routing.users == 0:
        begun = True
        routing.device = pool.device
        routing.handle = capture
        routing.first = first
        routing.second = second
        routing.count += 1
        allotment_owner_set(&routing.under_way, routing.count)
    else:
        begun = (not pool.routed and capture != 0 and routing.handle == capture and routing.device == pool.device
                 and routing.first == first and routing.second == second)
    if begun:
        routing.users += 1
        pool.routed = True
        pool.freed_on.count = 0
    lock_give(&routing.lock)
    return get_out(pool) and begun


cdef bint routing_end(DevicePool* pool, uint64_t first, uint64_t second) noexcept nogil:
    cdef bint ended
    enter(&routing.lock)
    ended = pool.routed and routing.first == first and routing.second == second
    if ended:
        pool.routed = False
        routing.users -= 1
        if routing.users == 0:
            allotment_owner_set(&routing.under_way, 0)
    lock_give(&routing.lock)
    return ended


cdef PoolOutcome pool_join(DevicePool* pool, stream_t stream, PoolRefusal* refusal) noexcept nogil:
    cdef PoolOutcome outcome
    if not get_in(pool):
        return POOL_CLOSED
    outcome = join(pool, stream, refusal)
    get_out(pool)
    return outcome


cdef PoolOutcome join(DevicePool* pool, stream_t stream, PoolRefusal* refusal) noexcept nogil:
    cdef DeviceTable* device = pool.device
    cdef PoolOutcome outcome = POOL_DONE
    cdef capture_t capture
    cdef stream_t other
    cdef status_t status
    while True:
        enter(&pool.lock)
        if pool.freed_on.count == 0:
            lock_give(&pool.lock)
            return POOL_DONE
        pool.freed_on.count -= 1
        other = pool.freed_on.streams[pool.freed_on.count]
        lock_give(&pool.lock)
        if other == stream:
            continue
        capture = 0
        status = device.capture_status(device.self, other, &capture)
        if status != OK and status != INVALID:      # a destroyed stream has left the capture
            outcome = refused(refusal, status, b"capture_status")
        elif capture != 0:
            outcome = let_wait(device, stream, other, refusal)
        if outcome != POOL_DONE:
            enter(&pool.lock)
            list_add(&pool.freed_on, other)     # there is room, because it was there before
            lock_give(&pool.lock)
            return outcome
