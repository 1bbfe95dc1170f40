"""The engine's data, explained where it is declared. Read this file first.

One `Engine` serves one device. Its memory is a set of *ranges*; each range is tiled, without a gap, by
*blocks*; each block belongs to one *shelf*, the place of one pool and one stream:

    Engine
      ├─ Pool (the default one, and one for each private pool)
      │    ├─ Placement: how its memory is divided
      │    ├─ Rack small ─┐
      │    └─ Rack large ─┴─ Shelf per stream: ordered free blocks, ordered unmapped blocks
      ├─ Range ── Block ⇄ Block ⇄ Block          tiles [base, base + size)
      │    └─ views: page -> Chunk               expandable ranges only
      ├─ StreamRecord ── queue of events that blocks wait for
      └─ map: address -> allocated Block

A block is in exactly one of these states:

    free       where its pool's placement keeps it: on its shelf's ordered set of free blocks, or at hand; mapped
    unmapped   on its shelf's ordered set of unmapped blocks; addresses without memory (expandable only)
    allocated  in the user's hands, and in the address map
    pending    freed by the user, but other streams may still use it: `event_count` > 0, or `uses` is
               not empty while it is deferred to the end of a capture; or it is held for other processes, which
               counts as one event more

Free neighbours of equal `mapped` state are never side by side: they are merged at once.
All of this is guarded by the engine's lock. An operation that has to wait, or to call somebody else's function, steps
out in the middle (see `stepping_out`). What it has in hand then is out of everybody's reach: a free block whose memory
is on its way back to the device is on no shelf, and merges with no neighbour, until that is settled. It is LEAVING, and
to counters and snapshots still a free block.
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
    LEAVING = 2                 # in Block.deferred: its memory is on its way back to the device

cdef enum Attention:            # why requests get a closer look, as bits
    FOR_ROUTES = 1              # some may go to other pools
    FOR_TAGS = 2                # the process has used tags
    FOR_TENANTS = 4             # what tenants hold is counted

cdef struct Block:
    # Two cache lines. The first is all that a look-up, a neighbour's merge or a split reads.
    address_t address
    bytes_t size
    bytes_t requested           # by the last user; never cleared, so a free block shows a stale value
    Block* prev                 # neighbours in the range
    Block* next
    Shelf* shelf
    StreamUse* uses             # other streams declared as users, in order of declaration
    int32_t event_count         # events recorded at its free and not yet seen complete, and one if it is held then
    unsigned char allocated
    unsigned char mapped
    unsigned char releasable    # on the list that `older`, `newer` make
    unsigned char deferred      # freed, and waiting until it can have events; or LEAVING

    # While free or unmapped: a node of an ordered set, by (size, order, address); unmapped blocks by address alone.
    Block* parent
    Block* left
    Block* right
    Block* older                # while free and the only block of a plain segment: in order of age
    Block* newer
    uint64_t order              # the number of its segment or of itself, as the rules want it; else 0
    Range* range
    uint32_t context            # stack of the allocation, 0 = none
    uint32_t segment_context    # stack of the request that got the segment; stays with the block object

cdef struct Deferred:
    # A freed block that other streams used, and that can have no events yet: a capture is under way, or (by the
    # older rules) requests are routed to some pool. With stream reuse it carries the last
    # nodes of every stream that used it, at the moment it was freed inside a capture. They belong to that
    # capture alone: node handles are reused by later graphs.
    Deferred* next
    Block* block
    bint awaited                # a thread waits for its streams, and frees it then
    capture_t capture
    bint outside                # freed outside of the capture that a use of it is in: that has to end first
    size_t marker_count         # 0: wait for the end of the capture
    node_t* markers

cdef struct StreamUse:
    StreamUse* next
    StreamRecord* stream
    bint in_capture             # declared inside a capture, which itself orders this use: see `captures`

cdef struct Hold:
    # A block that was shared with other processes. It stays with the block until that is free for good: who shares the
    # block twice gets the same generation, and who has its address later another one.
    Block* block
    uint64_t generation
    count_t leases              # processes that have it open
    count_t keeps               # handles that may still be opened
    bint freed                  # by its user: free for good when leases and keeps are over

cdef struct PendingEvent:
    PendingEvent* next
    event_t event
    uint64_t tick               # of its stream's clock
    uint64_t moment             # of the engine's clock
    Block* block

cdef struct StreamRecord:
    # A stream the engine has met. Its clock counts the events recorded on it; they finish in order, so
    # "has this event finished" is first a comparison with the last one seen finished, and a question to
    # the device only if that fails.
    #
    # The engine has a clock too, for placements that let one stream have what another freed: it counts frees and
    # events of all streams, so a moment of it says what came before what.
    stream_t handle
    uint32_t index              # in order of first sight
    uint64_t latest             # the moment of its last free or event
    uint64_t done               # everything up to this moment is over, as far as was seen
    uint64_t* synced            # by index: up to which moment of that stream this one comes after it
    size_t synced_room
    uint64_t recorded           # the clock
    uint64_t finished           # as far as was seen
    uint64_t awaited            # as far as somebody waits for all events
    count_t users               # shelves, uses of blocks, threads that wait for it: it stays as long as there are any
    PendingEvent* first         # events not yet seen complete, oldest first
    PendingEvent* last
    bytes_t range_bytes         # what an expandable range for it reserves; 0 = as the settings say for all
    StreamRecord* next_waiting  # streams with such events, in order of their first one
    StreamRecord* next_known    # all of them

cdef struct Shelf:
    # The free memory of one pool for one stream; blocks never change shelves. Small pools hold exact
    # sizes up to 2 MiB in bins under a two-level bitmap; what is larger, and everything in large pools,
    # is in one tree. Each bin is a tree too, by address, since many blocks can have one size.
    Rack* rack
    StreamRecord* stream
    Shelf* next                 # of the pool
    count_t ranges              # whose memory is its; without any it may go
    Block* tree
    Block* unmapped             # tree by address
    uint64_t summary            # bit per word of `words` that is not 0
    uint64_t words[WORD_COUNT]  # bit per bin that is not empty
    Block** bins                # NULL in large pools

cdef struct Rack:
    # One of the two halves of a pool: its shelves for small requests, or those for large ones.
    Pool* pool
    void* arena                 # what the pool's placement keeps; NULL: it keeps these shelves. Same in both halves
    int size_class              # SMALL or LARGE of stats
    Shelf* shelves
    Shelf* recent               # the one used last
    PointerMap by_stream        # handle + 1 -> Shelf
    Block* at_hand              # the block freed last, not on its shelf yet: see pool
    bytes_t free_bytes          # on the shelves
    count_t expandable_count    # expandable ranges with blocks of this pool
    bytes_t away                # of mapped blocks, what has no memory because the pool is paused
    uint64_t search_count       # the clock of garbage collection
    Block* oldest               # releasable blocks on the shelves by age: `freed_at` never falls along this list,
    Block* newest               # and their number and the sum of their `freed_at` are kept, so the
    count_t releasable_count    # average age is known without a walk
    uint64_t releasable_freed_sum

ctypedef void (*drop_t)(void* self) noexcept nogil     # what `self` stood for is needed no more

cdef struct RawAllocator:
    # Where a private pool gets its segments from, if not from the device. A refusal is address 0.
    address_t (*allocate)(void* self, bytes_t size, stream_t stream) noexcept nogil
    void (*free)(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil
    drop_t drop                 # the pool is gone and needs it no more
    void* self

cdef enum Sleep:                # of a pool's memory: see `pausing`
    AWAKE
    FALLING_ASLEEP              # its contents are on their way to the host
    ASLEEP                      # its addresses have no memory
    WAKING                      # they have, and the contents are on their way back

cdef inline bytes_t no_limit() noexcept nogil:
    """More than any device has."""
    return ~(<bytes_t> 0)

cdef struct Limits:
    bytes_t hard                # no more than this; `no_limit()`: as much as there is
    bytes_t soft                # before more than this, what is cached goes back; `no_limit()`: never for that
    bytes_t guaranteed          # others leave this much to be had

cdef struct Pool:
    # What users see as a pool: memory that serves certain requests and no others. The default one has the id (0, 0).
    uint64_t first, second      # the id
    uint32_t tag                # whose memory it is, if it is a tag's: always virtual. Else 0
    uint64_t used_at            # a tag's: the engine's count of requests for tags at the last one for this
    Sleep sleep
    Limits limits
    const Placement* placement
    Rack small, large
    count_t use_count
    count_t malloc_count        # segments; for expandable memory +1 a growth, -1 an unmapped block
    bytes_t reserved_bytes      # physical memory this pool holds
    PoolTally* tally            # the same over time, which outlives the pool; NULL for the default one
    count_t asking              # requests that look for memory for it; the lock may be let go meanwhile
    RawAllocator allocator      # `allocate` is NULL: the device itself
    bint no_split
    bint use_on_oom
    bint lent                   # others have its free memory before the device is asked: its owner promises not to run
    bint freeable               # has no user any more; goes when its memory has
    Pool* prev
    Pool* next                  # private pools in order of creation

ctypedef bint (*visit_t)(void* self, const Block* block, address_t address, bytes_t size,
                         bint begins) noexcept nogil

ctypedef bint (*visit_chunk_t)(void* self, chunk_t chunk, bytes_t size, address_t address) noexcept nogil

cdef struct Placement:
    # How a pool's memory is divided: which part serves a request, when to grow, what to give back. One table for
    # each way; a pool keeps the one that it was made with. PyTorch's keeps its free blocks on the pool's shelves,
    # and its hot path is inlined where `Rack.arena` is NULL. Any other keeps what it likes in an arena of its own,
    # which `create` makes, and puts nothing on a shelf: to it a shelf is the pair of pool and stream that a
    # block belongs to, always of the large half.
    #
    # All are called under the engine's lock. What can fail returns False or NULL with the reason in the failure,
    # and has changed nothing but for memory that it obtained or gave back on the way.
    const char* name
    bint needs_virtual          # only for devices with virtual memory that tell how much memory they have
    void* (*create)(Engine* engine, Pool* pool, Failure* failure) noexcept nogil   # NULL: no arena, the shelves
    void (*destroy)(Engine* engine, Pool* pool) noexcept nogil      # its records alone. pre: no memory, or never used

    # A block in the user's hands: `note_handed_out` was called for it. `hit` asks neither the device nor anybody
    # else; NULL with NO_FAILURE: nothing that is free will do, ask `miss`, which does all that can be done.
    Block* (*hit)(Engine* engine, Request* request) noexcept nogil
    Block* (*miss)(Engine* engine, Request* request) noexcept nogil
    # The same as `hit` for the request of another pool, when memory is out. pre: request.shelf is of this pool
    Block* (*lend)(Engine* engine, Request* request) noexcept nogil
    # Records for so many calls of `take_front`. NULL: they are of the engine's own, which the caller reserves
    bint (*reserve)(Engine* engine, Pool* pool, size_t count) noexcept nogil
    # The front of a free block in the user's hands, for a checkpoint. `shelf` is whose it was; NULL: the block's own,
    # where it is to be free again at once, or where `reserve` is NULL. pre: records for it are reserved
    Block* (*take_front)(Engine* engine, Block* block, Shelf* shelf, bytes_t size, uint32_t context) noexcept nogil
    # A block is free for good: its user and all streams are done with it. `note_free` is to be called for it.
    void (*take_back)(Engine* engine, Block* block, uint32_t context) noexcept nogil

    # Give cached memory back to the device until the pool holds no more than `keep`. pre: nothing of the pool
    # waits for events, or routing is active, and then they cannot be asked for
    bint (*release)(Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
    # Give back the addresses too, if the pool holds no memory
    bint (*retire)(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
    # Let one more device at what is mapped now. NULL: the engine does it, page by page of the pool's ranges
    bint (*grant)(Engine* engine, Pool* pool, device_t device, Failure* failure) noexcept nogil

    bytes_t (*largest_free)(Engine* engine, Pool* pool) noexcept nogil
    bytes_t (*free_bytes)(Engine* engine, Pool* pool) noexcept nogil
    # The most that could be put side by side of what is free, under new addresses. NULL: nothing can
    bytes_t (*joinable)(Engine* engine, Pool* pool) noexcept nogil
    # The first of the pool's ranges, which others follow by `next`. NULL: they are in the engine's list
    Range* (*ranges)(Engine* engine, Pool* pool) noexcept nogil
    # Show each byte of the pool's memory once, in order of address within a segment: its block, and the part of it
    # that is shown. False as soon as `visit` is. NULL: the blocks of the pool's ranges are what there is.
    bint (*walk)(Engine* engine, Pool* pool, visit_t visit, void* self) noexcept nogil
    # Show the chunks that a block lies in, in order, each with the address that it has there. False as soon as `visit`
    # is. NULL: the views of the block's range are what there is.
    bint (*chunks)(Engine* engine, Block* block, visit_chunk_t visit, void* self) noexcept nogil
    # Raise InvariantError if what it keeps is not in order; add to the totals the segments and inactive_split of
    # the pool. All other totals are counted from the walk.
    int (*check)(Engine* engine, Pool* pool, Totals* totals) except -1

cdef struct Chunk:
    # One piece of physical memory, the size of a page of its range.
    chunk_t handle
    bytes_t size
    uint32_t views              # how many places it is mapped at now

cdef struct Range:
    # Addresses. A plain segment is memory and addresses in one (`page` is 0). An expandable segment is
    # reserved once, far larger than needed, and backed page by page:
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
    uint64_t freed_at           # plain segments: the rack's search count when the last of it became free
    Shelf* shelf
    Range* prev
    Range* next                 # of the engine, in order of creation
    thread_t leaving            # the thread that is giving a plain segment back to the device, or 0
    bytes_t page
    Chunk** views               # by page number; NULL = no memory there
    size_t page_end             # behind the last page that ever had memory: what is not worth looking at from there on
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
    # "Requests that pass this filter are served by that pool." The newest that fits wins.
    Pool* pool
    Filter filter
    Route* older

cdef struct CaptureStore:
    # What is known of one capture under stream reuse: per stream, the nodes that come before it.
    capture_t capture
    CaptureStore* next
    VisitedNodes* streams

cdef struct VisitedNodes:
    stream_t stream
    PointerMap nodes            # node + 1 -> anything
    VisitedNodes* next

ctypedef bint (*free_memory_t)(void* self) noexcept nogil

cdef struct FreeMemoryCallback:
    free_memory_t run           # whether it freed anything
    void* self
    count_t running             # how many threads are in it
    bint removed                # it goes when no thread is in it any more
    FreeMemoryCallback* next

cdef struct CallbackRun:
    # A thread that runs the callbacks. What it asks for meanwhile is served without them.
    thread_t thread
    CallbackRun* next

cdef enum Reason:
    NO_FAILURE = 0
    FAILED_OUT_OF_MEMORY        # surely: everything was tried
    FAILED_REJECTED             # out of memory by the settings, before the device was asked
    FAILED_DEVICE               # `status` of `operation`
    FAILED_HOST_MEMORY          # no memory for the engine's own records
    FAILED_ADDRESS              # not the start of an allocated block
    FAILED_GIVEN_ADDRESS        # the device's `operation` gave `address` for `requested` bytes; `fault` is why not
    FAILED_EXACT_ADDRESS        # no free block holds the memory that was asked for by its address
    FAILED_EXPANDABLE_BASE      # the base of an expandable segment was asked for
    FAILED_POOL_UNKNOWN
    FAILED_POOL_FREEABLE
    FAILED_POOL_IN_USE          # an allocator given for a pool that exists
    FAILED_POOL_ID
    FAILED_POOL_PLACEMENT       # its placement cannot do what was asked for
    FAILED_ALREADY_ROUTING
    FAILED_NOT_ROUTING
    FAILED_STILL_CAPTURING
    FAILED_CHECKPOINT_EVENTS
    FAILED_CHECKPOINT_MISMATCH
    FAILED_CHECKPOINT_CAPTURE   # a stream that uses a block of the pool is being captured
    FAILED_PAUSED               # the pool's memory is not there
    FAILED_PAUSE_PLAIN          # the segment at `address` has its addresses from the device together with its memory
    FAILED_PAUSE_PLACEMENT
    FAILED_PAUSE_SHARED         # another process has the block at `address`

cdef enum Limiter:              # whose limit stood in the way
    NO_LIMITER
    LIMIT_OF_ALLOCATOR
    LIMIT_OF_POOL               # `limiting_pool`, or its tag
    LIMIT_OF_TENANT
    PROMISED_TO_POOL            # the rest is guaranteed to it

cdef struct Failure:
    # Why an operation failed, as facts. Exactly one place makes an exception of it.
    Reason reason
    status_t status
    const char* operation
    const char* fault
    address_t address
    uint64_t pool_first, pool_second    # of the pool that could not be used, or that was to serve the request
    Limiter limiter
    uint64_t limiting_first, limiting_second    # of the pool whose limit it was
    uint32_t context            # of the request: whose it was
    bytes_t waiting             # freed, and not to be reused yet
    count_t frees               # so far: see `frees_so_far`
    bytes_t requested, rounded, segment
    stream_t stream
    bint limited
    bint expandable             # the settings ask for expandable segments
    bytes_t device_free, device_total, limit, allocated, reserved, private_free, largest_free
    bint joins                  # its placement puts free memory side by side:
    bytes_t joinable            # how much it could have
    bytes_t range_bytes         # reserve of a range for the stream, if the settings have one; else 0

cdef struct Request:
    # One request on its way through the engine.
    bytes_t size                # as asked
    bytes_t rounded
    bytes_t segment             # what a new plain segment for it would have
    stream_t stream
    thread_t thread             # 0: the calling one
    uint32_t context
    bint capturing              # the caller is inside a capture
    bint is_fresh               # served with a new segment of the device's, which no one has had
    count_t given_back          # bytes of the cache that went back to the device for it; less than 0: none was tried
    Shelf* shelf
    bint expandable             # expandable memory may serve it
    Failure failure

cdef struct Account:
    # What a tenant holds and may hold. Kept where the history is reported, so that it costs nothing without limits.
    bytes_t held
    bytes_t limit               # `no_limit()`: any

cdef struct Engine:
    Lock lock
    bint interpreter_guards     # whoever is inside holds `lock`, or the interpreter lock throughout
    int outside                 # threads that wait for `lock` without the interpreter lock, against that rule
    DeviceTable* table
    Tuning tuning
    Rules rules
    uint64_t segments_numbered, blocks_numbered     # as far as the rules ask for numbers
    bytes_t total_memory        # of the device
    bytes_t limit
    bint limited
    bytes_t soft_limit          # as `Limits.soft`
    count_t limit_count         # pools with limits of their own, and one for `soft_limit`
    Account* accounts           # by tenant; NULL while no tenant has a limit
    bint terse                  # no one reads what a shortage would have to look at all pools for: a replay
    Stats stats
    Trace trace

    bint uncached               # requests go straight to the device
    int attention               # an Attention each: 0 lets a request take the short way
    count_t tag_count           # tags with a pool
    uint64_t tag_requests
    Block* latest               # allocated last, and not in `blocks` yet: see address_map
    PointerMap blocks           # address -> allocated Block
    PointerMap direct           # address -> size, of what was allocated while caching was off
    size_t direct_leaving       # of those, how many are on their way back and may return into the map
    PointerMap streams          # handle + 1 -> StreamRecord
    StreamRecord* recent_stream
    StreamRecord* known_streams
    size_t stream_count
    uint64_t moment             # the clock over all streams
    StreamRecord* first_waiting
    StreamRecord* last_waiting
    Deferred* first_deferred
    Deferred* last_deferred
    CaptureStore* captures
    PointerMap holds            # address -> Hold, of every block that was shared
    uint64_t shared_blocks      # so far: the generation of the last
    StreamRecord elsewhere      # stands for other processes among the users of a block that was shared

    const Placement* placement  # of pools for which none is asked for
    Pool defaults
    PointerMap pools            # see pool_key -> Pool
    PointerMap pool_tallies     # the same -> PoolTally, also of pools that are gone
    Pool* first_pool
    Pool* last_pool
    count_t freeable_count, lender_count, lent_count
    Route* routes               # newest first
    count_t impure_routes       # whose filter asks the device or a function

    Range* first_range
    Range* last_range
    Range** by_address          # those that have an address, in order of it
    size_t placed_count, placed_room
    size_t range_count          # all of them
    bint has_leftovers          # pages with memory, but no block: the device refused to take it back
    device_t peers[PEERS_MOST]
    int peer_count

    FreeMemoryCallback* callbacks
    CallbackRun* callback_runs
    event_t* spare_events
    size_t spare_event_count, spare_event_room
    address_t* late_frees       # asked for from inside the engine; done when it is left
    size_t late_free_count, late_free_room
    bint frees_late             # somebody is doing them

    Slab block_slab, use_slab, pending_slab, deferred_slab, chunk_slab
    ForkGuard fork_guard
