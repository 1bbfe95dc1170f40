"""The engine's data, explained where it is declared. Read this file first.

One `Engine` serves one device. Its memory is a set of *ranges*; *blocks* tile each range without a gap; each block
belongs to one *free list*: the free memory of one half of a pool, small or large, for one stream:

    Engine
      ├─ Pool (the default one, and one for each private pool)
      │    ├─ Placement: how its memory is divided
      │    ├─ Half small ─┐
      │    └─ Half large ─┴─ Free list per stream: ordered free blocks, ordered unmapped blocks
      ├─ Range ── Block ⇄ Block ⇄ Block          tiles [base, base + size)
      │    └─ views: page -> Chunk               expandable ranges only
      ├─ StreamRecord ── queue of events that blocks wait for
      └─ map: address -> allocated Block

Each block is in exactly one of these states:

    free       kept by its pool's placement, in its free list's ordered set of free blocks or as `last_freed`; mapped
    unmapped   in its free list's ordered set of unmapped blocks; addresses without memory (expandable only)
    allocated  owned by the user, and in the address map
    pending    freed by the user, but other streams may still use it: `event_count` > 0, or `uses` is not empty
               while it is deferred to the end of a capture. A block held for other processes counts one more event

Two adjacent blocks are never both free with equal `mapped` state: they are merged at once.

The engine's lock guards all of this. An operation that has to block, or to call foreign code, releases the lock in the
middle (see `unlocked_section`). What it works on is then out of reach for other threads: a free block whose memory is
being returned to the device is on no free list, and merges with no neighbour, until that is done. Such a block is
LEAVING; counters and snapshots still show it as a free block.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, count_t, device_t, event_t, node_t, stream_t, thread_t)
from allotment._core.model.rules cimport Rules
from allotment._core.model.sizes cimport Tuning
from allotment._core.records.stats cimport PoolTally, Stats, Totals
from allotment._core.records.trace cimport Trace
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._core.tools.slab cimport Slab

cdef enum:
    BIN_COUNT = 4096            # exact sizes 512 .. 2 MiB
    WORD_COUNT = 64             # of 64 bins each
    PEERS_MOST = 64
    WAITED_ROOM = 64            # a power of two

cdef enum Withheld:             # why nobody may use a block that is neither allocated nor waiting for events
    DEFERRED = 1                # freed, and waiting until events can be recorded
    LEAVING = 2                 # its memory is being returned to the device

cdef enum SlowPathReason:       # why requests take the slow path, as bits
    FOR_ROUTES = 1              # some may go to other pools
    FOR_TAGS = 2                # the process has used tags
    FOR_TENANTS = 4             # tenants' memory is counted

cdef struct Block:
    # Two cache lines. A lookup, a neighbour's merge and a split read only the first.
    address_t address
    bytes_t size
    bytes_t requested           # by the last user; never cleared, so a free block shows a stale value
    Block* prev                 # neighbours in the range
    Block* next
    FreeList* free_list
    StreamUse* uses             # other streams that use it, in the order they were recorded
    int32_t event_count         # events of its free not seen complete, plus one while other processes hold it
    unsigned char allocated
    unsigned char mapped
    unsigned char releasable    # in the list linked by `older` and `newer`
    unsigned char withheld      # a Withheld, else 0

    # While free or unmapped: a node of an ordered set, by (size, order, address); unmapped blocks only by address.
    Block* parent
    Block* left
    Block* right
    Block* older                # while free and the only block of a plain segment: in order of age
    Block* newer
    uint64_t order              # the number of its segment or of itself, depending on the rules; else 0
    Range* range
    uint32_t context            # stack of the allocation, 0 = none
    uint32_t segment_context    # stack of the request that allocated the segment; stays with the block object

cdef struct Deferred:
    # A freed block that other streams used, for which no events can be recorded yet: a capture is in progress, or (by
    # the older rules) requests are routed to some pool. With stream reuse it carries the last nodes of every stream
    # that used it, at the moment it was freed inside a capture. They are valid only in that capture: later graphs reuse
    # node handles.
    Deferred* next
    Block* block
    bint awaited                # a thread is waiting for its streams and will free it
    capture_t capture
    bint outside                # a use is in a capture, and the free was outside: that capture has to end first
    size_t marker_count         # 0: wait for the end of the capture
    node_t* markers

cdef struct StreamUse:
    StreamUse* next
    StreamRecord* stream
    bint in_capture             # recorded inside a capture, which itself orders this use: see `captures`

cdef struct Hold:
    # A block that was shared with other processes. The record lives until the block is free for good. So sharing the
    # block twice gives the same generation, and a later block at the same address gets another one.
    Block* block
    uint64_t generation
    count_t leases              # processes that have the block open
    count_t keeps               # handles that may still be opened
    bint freed                  # by its user; the block is free for good when leases and keeps have ended

cdef struct PendingEvent:
    PendingEvent* next
    event_t event
    uint64_t tick               # of its stream's clock
    uint64_t moment             # of the engine's clock
    Block* block

cdef struct StreamRecord:
    # A stream that the engine has seen. Its clock counts the events recorded on it. Events of a stream finish in order.
    # So "has this event finished" first compares the event with the last one seen finished, and asks the device only if
    # that does not answer it.
    #
    # The engine has a clock too, for placements that let one stream reuse what another freed. It counts the frees and
    # events of all streams, so its moments order them.
    stream_t handle
    uint32_t index              # in order of first sight
    uint64_t latest             # the moment of its last free or event
    uint64_t done               # everything up to this moment was seen finished
    uint64_t joined             # the stream is ordered after everything that any stream had submitted at this moment
    uint64_t waited_latest      # the latest moment in `waited`; kept here because `waited` is usually not in the cache
    Waited* waited              # the other streams that it has waited for since, in WAITED_ROOM slots; NULL: none yet
    StreamRecord* next_active   # among the streams whose `latest` is after the engine's `joined`
    uint64_t recorded           # the clock
    uint64_t finished           # the last tick seen finished
    uint64_t awaited            # the last tick that a wait for all events covers
    count_t users               # free lists, uses of blocks, waiting threads: the record lives while this is > 0
    PendingEvent* first         # events not yet seen complete, oldest first
    PendingEvent* last
    bytes_t range_bytes         # size of an expandable range for it; 0 = as set for all streams
    StreamRecord* next_waiting  # streams with such events, in order of their first one
    StreamRecord* next_known    # all of them
    count_t waiting             # scratch: the number of its blocks that wait for events

cdef struct Waited:
    # A stream has waited for another. The slot is the other's index modulo WAITED_ROOM, so a later wait can replace it.
    # Forgetting a wait is conservative: the stream may wait once more.
    uint32_t index
    uint64_t moment             # everything that the other had submitted at this moment comes before

cdef struct FreeList:
    # The free memory of one pool for one stream; blocks never change lists. Small pools keep exact sizes up to 2 MiB
    # in bins under a two-level bitmap. One tree holds larger blocks, and all blocks of large pools. Each bin is a tree
    # too, by address, since many blocks can have one size.
    Half* half
    StreamRecord* stream
    FreeList* next              # of the pool
    count_t ranges              # ranges whose memory belongs to it; without any the free list may go
    Block* tree
    Block* unmapped             # tree by address
    uint64_t summary            # bit per word of `words` that is not 0
    uint64_t words[WORD_COUNT]  # bit per bin that is not empty
    Block** bins                # NULL in large pools

cdef struct Half:
    # One half of a pool: its free lists for small requests, or those for large ones.
    Pool* pool
    void* arena                 # the placement's data; NULL: it uses these free lists. Same in both halves
    int size_class              # SMALL or LARGE of stats
    FreeList* free_lists
    FreeList* recent            # the free list used last
    PointerMap by_stream        # handle + 1 -> FreeList
    Block* last_freed           # the block freed last, not on its free list yet: see `free_lists`
    bytes_t free_bytes          # on the free lists
    count_t expandable_count    # expandable ranges with blocks of this pool
    bytes_t away                # bytes of mapped blocks without memory, because the pool is paused
    uint64_t search_count       # the clock of garbage collection
    Block* oldest               # releasable blocks on the free lists by age: `freed_at` never falls along this list.
    Block* newest               # Their number and the sum of their `freed_at` give the
    count_t releasable_count    # average age without a walk
    uint64_t releasable_freed_sum

ctypedef void (*drop_t)(void* self) noexcept nogil     # the owner may free `self`

cdef struct RawAllocator:
    # Where a private pool gets its segments, if not from the device. Address 0 means that it refuses.
    address_t (*allocate)(void* self, bytes_t size, stream_t stream) noexcept nogil
    void (*free)(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil
    drop_t drop                 # called when the pool is gone
    void* self

cdef enum Sleep:                # state of a pool's memory: see `pausing`
    AWAKE
    FALLING_ASLEEP              # its contents are being copied to the host
    ASLEEP                      # its addresses have no memory
    WAKING                      # its addresses have memory, and the contents are being copied back

cdef inline bytes_t no_limit() noexcept nogil:
    """More than any device has."""
    return ~(<bytes_t> 0)

cdef struct Limits:
    bytes_t hard                # never more than this; `no_limit()`: none
    bytes_t soft                # before the pool grows beyond this, cached memory is released; `no_limit()`: never
    bytes_t guaranteed          # other pools must leave this much available

cdef struct Pool:
    # Memory that serves certain requests and no others. The default pool has the id (0, 0).
    uint64_t first, second      # the id
    uint32_t tag                # the tag whose memory it is, then always virtual memory; else 0
    uint32_t sleeps_with        # the tag that a private pool was made in, and is paused with; then virtual memory too
    uint64_t used_at            # a tag's pool: the engine's count of requests for tags at its last request
    Sleep sleep
    Limits limits
    const Placement* placement
    Half small, large
    count_t use_count
    count_t malloc_count        # segments; for expandable memory +1 per growth, -1 per unmapped block
    bytes_t reserved_bytes      # physical memory this pool holds
    PoolTally* tally            # the same over time; outlives the pool; NULL for the default pool
    count_t asking              # requests that look for memory for it, some in unlocked sections; not deleted until 0
    RawAllocator allocator      # `allocate` is NULL: the device itself
    bint no_split
    bint use_on_oom
    bint lent                   # its free memory is lent before the device is asked: its owner promises to stay idle
    count_t sleepers            # of a tag's pool: how many pools sleep with it
    bint replayed               # captures allocated from it: a graph may use its free memory when it runs
    stream_t* replay_streams    # the streams that such graphs have run on, as far as they are known
    size_t replay_stream_count, replay_stream_room
    bint freeable               # has no user left; deleted when it holds no memory
    Pool* prev
    Pool* next                  # private pools in order of creation

ctypedef bint (*visit_t)(void* self, const Block* block, address_t address, bytes_t size,
                         bint begins) noexcept nogil

ctypedef bint (*visit_chunk_t)(void* self, chunk_t chunk, bytes_t size, address_t address) noexcept nogil

cdef struct Placement:
    # How a pool's memory is divided: which part serves a request, when to grow, what to release. Each way is one table;
    # a pool keeps the table it was created with. PyTorch's placement keeps free blocks on the pool's free lists, and
    # its hot path is inlined where `Half.arena` is NULL. Any other placement keeps its data in an arena of its own,
    # which `create` makes, and puts nothing on a free list. For such a placement a free list is only the pair of pool
    # and stream that a block belongs to, always of the large half.
    #
    # All functions run under the engine's lock. A function that can fail returns False or NULL with the reason in the
    # failure. It has then changed nothing, except that it may have allocated or released memory on the way.
    const char* name
    bint needs_virtual          # only for devices with virtual memory that report their memory size
    void* (*create)(Engine* engine, Pool* pool, Failure* failure) noexcept nogil   # NULL: no arena, the free lists
    void (*destroy)(Engine* engine, Pool* pool) noexcept nogil      # only its records. pre: no memory, or never used

    # Returns an allocated block for which `note_handed_out` was called. `hit` calls neither the device nor foreign
    # code. NULL with NO_FAILURE means that no free memory fits; the caller then calls `miss`, which does everything
    # else that is possible.
    Block* (*hit)(Engine* engine, Request* request) noexcept nogil
    Block* (*miss)(Engine* engine, Request* request) noexcept nogil
    # Like `hit`, for an ordinary request of the default pool: whole blocks, and nothing traced or waiting. Also NULL,
    # without a change, if the block freed last does not suit it. NULL: `hit` is always called.
    Block* (*hit_last_freed)(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil
    # Like `hit`, for a request of another pool when the device is out of memory. pre: request.free_list is of this pool
    Block* (*lend)(Engine* engine, Request* request) noexcept nogil
    # Reserves records for `count` calls of `take_front`. NULL: the caller reserves the engine's own
    bint (*reserve)(Engine* engine, Pool* pool, size_t count) noexcept nogil
    # Allocates the front of a free block, for a checkpoint. `free_list` is the one that the block belonged to. NULL
    # means the block's own: for a block that is freed again at once, or where `reserve` is NULL. pre: records are
    # reserved
    Block* (*take_front)(
        Engine* engine, Block* block, FreeList* free_list, bytes_t size, uint32_t context) noexcept nogil
    # Frees a block for good: its user and all streams are done with it. Must call `note_free_completed`.
    void (*complete_free)(Engine* engine, Block* block, uint32_t context) noexcept nogil

    # Releases cached memory until the pool holds no more than `keep`. pre: nothing in the pool waits for events, or
    # routing is active, which forbids querying them
    bint (*release)(Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
    # Releases the addresses too, if the pool holds no memory.
    bint (*retire)(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
    # Gives one more device access to all current mappings. NULL: the engine does that, page by page
    bint (*grant)(Engine* engine, Pool* pool, device_t device, Failure* failure) noexcept nogil

    bytes_t (*largest_free)(Engine* engine, Pool* pool) noexcept nogil
    bytes_t (*free_bytes)(Engine* engine, Pool* pool) noexcept nogil
    # Returns the most bytes that could be remapped to one contiguous block. NULL: none
    bytes_t (*joinable)(Engine* engine, Pool* pool) noexcept nogil
    # Returns the first of the pool's ranges; the others follow by `next`. NULL: they are in the engine's list
    Range* (*ranges)(Engine* engine, Pool* pool) noexcept nogil
    # Visits each byte of the pool's memory once, in order of address within a segment: its block, and the part of it
    # that is visited. Returns False as soon as `visit` does. NULL: visit the blocks of the pool's ranges.
    bint (*walk)(Engine* engine, Pool* pool, visit_t visit, void* self) noexcept nogil
    # Visits the chunks that a block lies in, in order, each with its address there. Returns False as soon as `visit`
    # does. NULL: visit the views of the block's range.
    bint (*chunks)(Engine* engine, Block* block, visit_chunk_t visit, void* self) noexcept nogil
    # Raises InvariantError if its data is inconsistent. Adds the pool's segments and inactive_split to the totals; the
    # caller counts all other totals from the walk.
    int (*check)(Engine* engine, Pool* pool, Totals* totals) except -1

cdef struct Chunk:
    # One piece of physical memory, as large as one page of its range.
    chunk_t handle
    bytes_t size
    uint32_t views              # number of places where it is mapped

cdef struct Range:
    # Addresses. A plain segment gets memory and addresses together (`page` is 0). An expandable segment reserves far
    # more addresses than it needs, once, and backs them page by page:
    #
    #     base                                                            base + size
    #     | allocated | free | allocated  |f|      unmapped     |  free  |  unmapped ...
    #     | page 0 ------ | page 1 ------ |page 2 ---| (no view)|page 4 -|
    #
    # Unmapped blocks begin and end on page boundaries, mapped ones anywhere.
    address_t base
    bytes_t size
    Block* head                 # the block at `base`
    uint64_t order              # its number, if the rules order free blocks by segment
    uint64_t freed_at           # plain segments: the half's search count when the whole segment became free
    FreeList* free_list
    Range* prev
    Range* next                 # of the engine, in order of creation
    thread_t leaving            # the thread that is returning a plain segment to the device, or 0
    bytes_t page
    Chunk** views               # by page number; NULL = no memory there
    size_t page_end             # one past the last page that ever had memory
    bytes_t mapped

ctypedef enum FilterKind:
    FILTER_ALL
    FILTER_STREAM
    FILTER_THREAD
    FILTER_CAPTURE
    FILTER_FUNCTION

ctypedef bint (*filter_t)(void* self, stream_t stream) noexcept nogil

cdef struct Filter:
    FilterKind kind
    uint64_t value              # the stream, thread or capture that is accepted
    filter_t accepts            # FILTER_FUNCTION
    drop_t drop
    void* self

cdef struct Route:
    # "This pool serves requests that pass this filter." The newest match wins.
    Pool* pool
    Filter filter
    Route* older

cdef struct CaptureStore:
    # What the engine knows of one capture under stream reuse: for each stream, the nodes ordered before it.
    capture_t capture
    CaptureStore* next
    VisitedNodes* streams

cdef struct VisitedNodes:
    stream_t stream
    PointerMap nodes            # node + 1 -> not NULL
    VisitedNodes* next

ctypedef bint (*free_memory_t)(void* self) noexcept nogil

cdef struct FreeMemoryCallback:
    free_memory_t run           # returns whether it freed something
    void* self
    count_t running             # number of threads running it
    bint removed                # deleted when no thread runs it any more
    FreeMemoryCallback* next

cdef struct CallbackRun:
    # A thread that runs the callbacks. The thread's own requests do not invoke callbacks.
    thread_t thread
    CallbackRun* next

cdef enum Reason:
    NO_FAILURE = 0
    FAILED_OUT_OF_MEMORY        # the engine has tried everything
    FAILED_REJECTED             # out of memory by the settings, without asking the device
    FAILED_DEVICE               # `status` of `operation`
    FAILED_HOST_MEMORY          # no memory for the engine's own records
    FAILED_ADDRESS              # not the start of an allocated block
    FAILED_GIVEN_ADDRESS        # `operation` returned `address` for `requested` bytes; `fault` says what is wrong
    FAILED_EXACT_ADDRESS        # no free block holds the memory requested by its address
    FAILED_EXPANDABLE_BASE      # the caller asked for the base of an expandable segment
    FAILED_POOL_UNKNOWN
    FAILED_POOL_FREEABLE
    FAILED_POOL_IN_USE          # the caller passed an allocator for a pool that exists
    FAILED_POOL_ID
    FAILED_POOL_PLACEMENT       # its placement does not support the operation
    FAILED_ALREADY_ROUTING
    FAILED_NOT_ROUTING
    FAILED_STILL_CAPTURING
    FAILED_CHECKPOINT_EVENTS
    FAILED_CHECKPOINT_MISMATCH
    FAILED_CHECKPOINT_CAPTURE   # a stream that uses a block of the pool is being captured
    FAILED_PAUSED               # the pool has no memory now
    FAILED_PAUSE_PLAIN          # the segment at `address` got its addresses from the device with its memory
    FAILED_PAUSE_PLACEMENT      # `fault` names the pool's placement, which cannot pause
    FAILED_PAUSE_SHARED         # another process may have the block at `address` open
    FAILED_PAUSE_CAPTURE        # a capture is under way, which waiting for the device would break

cdef enum Limiter:              # whose limit prevented it
    NO_LIMITER
    LIMIT_OF_ALLOCATOR
    LIMIT_OF_POOL               # the pool `limiting_first`, `limiting_second`, or its tag
    LIMIT_OF_TENANT
    PROMISED_TO_POOL            # the rest is guaranteed to that pool

cdef struct Failure:
    # Why an operation failed, as facts. Only `outcome` makes an exception of it.
    Reason reason
    status_t status
    const char* operation
    const char* fault
    address_t address
    uint64_t pool_first, pool_second    # the pool that was unusable, or should have served the request
    Limiter limiter
    uint64_t limiting_first, limiting_second    # the pool whose limit it was
    uint32_t context            # of the request; names its tenant
    bytes_t waiting             # bytes freed but not reusable yet
    count_t frees               # so far: see `frees_so_far`
    bytes_t requested, rounded, segment
    stream_t stream
    bint limited
    bint expandable             # the settings ask for expandable segments
    bytes_t device_free, device_total, limit, allocated, reserved, private_free, largest_free
    bint no_addresses           # the device had no addresses left to reserve, and had enough memory
    bint joins                  # the placement can remap free memory to be contiguous:
    bytes_t joinable            # that many bytes
    bytes_t range_bytes         # size of a range for the stream, if the settings have one; else 0

cdef struct Request:
    # One request on its way through the engine.
    bytes_t size                # as asked
    bytes_t rounded
    bytes_t segment             # size of a new plain segment for it
    stream_t stream
    thread_t thread             # 0: the calling one
    uint32_t context
    bint capturing              # the caller is inside a capture
    bint is_fresh               # served with a new segment from the device, unused before
    count_t given_back          # cached bytes released for it; < 0: no release was tried
    FreeList* free_list
    bint expandable             # expandable memory may serve it
    Failure failure

cdef struct Account:
    # Memory that a tenant holds and may hold. The engine updates it where it reports events, so it costs nothing
    # without limits.
    bytes_t held
    bytes_t limit               # `no_limit()`: none

cdef struct Engine:
    Lock lock
    bint interpreter_guards     # a thread inside holds either `lock`, or the interpreter lock throughout
    int outside                 # threads that wait for `lock` without the interpreter lock, against that rule
    DeviceTable* table
    Tuning tuning
    Rules rules
    uint64_t segments_numbered, blocks_numbered     # counters, where the rules ask for numbers
    bytes_t total_memory        # of the device
    bytes_t limit
    bint limited
    bytes_t soft_limit          # as `Limits.soft`
    count_t limit_count         # pools with their own limits, plus one for `soft_limit`
    Account* accounts           # by tenant; NULL while no tenant has a limit
    bint terse                  # a replay: nobody reads the facts that an out-of-memory report gathers from all pools
    Stats stats
    Trace trace

    bint uncached               # requests go directly to the device
    int slow_path_reasons       # bits of SlowPathReason; 0 lets a request take the fast path
    count_t tag_count           # tags with a pool
    uint64_t tag_requests
    Block* latest               # allocated last, and not in `blocks` yet: see `address_map`
    PointerMap blocks           # address -> allocated Block
    PointerMap direct           # address -> size of what was allocated while caching was off
    size_t direct_leaving       # how many are being returned to the device, and come back if it refuses
    PointerMap streams          # handle + 1 -> StreamRecord
    StreamRecord* recent_stream
    StreamRecord* known_streams
    size_t stream_count
    uint64_t moment             # the clock over all streams
    uint64_t joined             # everything that any stream had submitted at this moment comes before the event `join`
    event_t join                # exists if `joined` is not 0
    StreamRecord* first_active  # streams that freed or recorded anything after `joined`
    uint64_t past               # everything that any stream had submitted at this moment was seen finished
    StreamRecord* first_waiting
    StreamRecord* last_waiting
    Deferred* first_deferred
    Deferred* last_deferred
    CaptureStore* captures
    PointerMap holds            # address -> Hold, of every block that was shared
    uint64_t shared_blocks      # so far: the generation of the last one
    stream_t calm_stream        # the allocator's own, with no queued work and no waits; 0: none
    StreamRecord elsewhere      # stands for other processes among the users of a shared block

    const Placement* placement  # of pools created without naming one
    const Placement* tag_placement      # of the pools of tags, and of those made inside one
    Pool defaults
    PointerMap pools            # see pool_key -> Pool
    PointerMap pool_tallies     # the same -> PoolTally, also of deleted pools
    Pool* first_pool
    Pool* last_pool
    count_t freeable_count, lender_count, lent_count
    Route* routes               # newest first
    count_t impure_routes       # routes whose filter asks the device or calls a function

    Range* first_range
    Range* last_range
    Range** by_address          # the ranges that have an address, sorted by it
    size_t placed_count, placed_room
    size_t range_count          # all of them
    bint has_leftovers          # some pages have memory but no block: the device refused to take it back
    device_t peers[PEERS_MOST]
    int peer_count

    FreeMemoryCallback* callbacks
    CallbackRun* callback_runs
    event_t* spare_events
    size_t spare_event_count, spare_event_room
    address_t* late_frees       # requested from inside the engine; drained before a thread leaves it
    size_t late_free_count, late_free_room
    bint frees_late             # a thread is draining them

    Slab block_slab, use_slab, pending_slab, deferred_slab, chunk_slab
    ForkGuard fork_guard
