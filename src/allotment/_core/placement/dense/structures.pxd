"""The data of dense placement, explained where it is declared. Read this file before the others of this folder.

One *arena* holds all memory of a pool, for all streams and sizes. Physical memory comes in *chunks* of different sizes.
Addresses come in *regions*, each filled from its base upwards. A *view* maps one chunk at one place of a region; a
chunk has a home, its first view, and may have more. *Tiles* tile a region up to where it is filled:

    region 0   | A  in use |  B  free  |in use|  C  free tail |  D  in use |       chunks A B C D at home
    region 3   | C (shadow)| C free tail | B | head of E free | E (shadow)         the same bytes, contiguous

A tile is in one of these states:

    TILE_FREE      free; in the arena's indexes, with the clock of its last users
    TILE_USED      allocated, or freed and still waiting for other streams
    TILE_SHADOW    bytes that a tile of another region uses: the same chunk, another view
    TILE_GAP       addresses whose view is gone

Adjacent free tiles are one tile, even across the borders of chunks. All views of a chunk agree: a byte is in use
through at most one of them, and is then a shadow in all others. So no two users ever share a byte.

Each chunk has a maximum number of views, which begins as the settings say. When a chunk exceeds it, the arena drops the
view used longest ago, if nothing is used through that view and all work that used it is finished. Its addresses become
a gap, like those of a chunk that was released. The arena maps new chunks into gaps.

All orders go by *place*: the number of the region, then the offset in it. The addresses that the driver chose never
influence a decision.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t

from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, count_t, event_t
from allotment._core.model.model cimport Block, Engine, Pool, Range, StreamRecord
from allotment._core.tools.slab cimport Slab

cdef enum:
    CLOCK_STREAMS = 4
    OFFSET_BITS = 39            # of a place, in units of 512 bytes; one more bit is for the side of a neighbour
    GRANULE = 2097152           # unit of chunks and views

cdef enum TileState:
    TILE_FREE
    TILE_USED
    TILE_SHADOW
    TILE_GAP

cdef struct Clock:
    # The last free of any byte of a free tile, by stream: one moment of the engine's clock for each stream. A stream
    # may have the memory once it is ordered after all of these moments. If there are more streams than slots, the
    # oldest moment counts for every stream. That is conservative: it may cause an unnecessary wait, never a missing
    # one. The engine forgets no stream while an arena exists.
    int32_t count
    StreamRecord* streams[CLOCK_STREAMS]
    uint64_t moments[CLOCK_STREAMS]
    uint64_t everyone                   # 0 = none was folded

cdef struct Node:
    # A node of a treap ordered by (rank, place). `longest` is the largest `size` in the subtree, so one descent finds
    # the first node that is large enough. The weight is random, because keys of nodes change in place.
    Node* up
    Node* low
    Node* high
    uint64_t rank, place
    bytes_t size, longest
    Tile* tile
    uint32_t weight
    bint inside                 # whether it is in its tree

cdef struct Tile:
    Block block                 # address, size and neighbours; its `range` is the region's
    int state
    View* view                  # under its first byte; NULL for a gap
    Tile* user                  # shadow: the tile that uses these bytes. In use: the first of its shadows
    Tile* next_shadow           # of the same user
    Node by_place               # free tiles and gaps, each in their own tree
    Node* by_size               # free, and large: by size
    Node* beside[2]             # free, next to a large tile in use (before, after): by that tile's size
    Clock clock                 # free
    bint keeps_clock            # allocated briefly without a user, while a checkpoint restores the pool's tiles

cdef struct View:
    DenseChunk* chunk
    Region* region
    address_t address
    bytes_t live                # bytes in use through this view
    uint64_t last_use           # when it last served a request, by the arena's request count
    uint64_t freed              # when something used through it was last freed, by the engine's clock
    View* before                # neighbours in the region; not always adjacent, where a view has gone
    View* behind
    View* next_of_chunk

cdef struct DenseChunk:
    chunk_t handle
    bytes_t size
    bytes_t live                # bytes in use through any view
    uint64_t number             # in order of creation
    View* home                  # its first view; the others follow by `next_of_chunk`
    uint32_t view_count
    uint32_t view_limit         # doubles, within bounds, when a dropped view comes back soon
    uint64_t dropped            # when it last lost a view, by the arena's request count; 0: does not count
    LastFree* last_frees        # kept only for the checker: see `witness`
    size_t last_free_count, last_free_room
    DenseChunk* prev
    DenseChunk* next            # of the arena, in order of creation

cdef struct LastFree:
    # When some bytes of a chunk were last freed, if they were not allocated and freed again since.
    bytes_t begin, end          # in the chunk
    Clock clock

cdef struct Region:
    Range range                 # covers its tiles; in its arena's list, not in the engine's
    uint64_t number
    bytes_t room                # its addresses
    bint is_main                # the arena puts or has put new memory at its end: its views are not dropped
    Tile* last
    View* first_view
    View* last_view
    count_t leftovers           # mappings without a view that the device refused to unmap: no new views go here

cdef struct Space:
    # Reserved addresses; regions are parts of them.
    address_t base
    bytes_t size, used

cdef struct Leftover:
    # Memory that the device refused to take back. Emptying the cache retries it. It does not count as reserved.
    Region* region              # NULL: not mapped any more
    address_t address
    chunk_t handle
    bytes_t size
    bint created                # the chunk was created for that growth, so it is released with the mapping

cdef struct Probe:
    # An event that tells a stream's progress, for a stream without another pending event of that moment.
    event_t event
    uint64_t moment             # of the engine's clock; 0: none

cdef struct Counts:
    count_t stitches, forced_growths, waits, wait_reuses, views, views_most, views_dropped, gaps_filled, adopted
    count_t reserve, create, map, access, unmap, release        # device calls

cdef struct Arena:
    Engine* engine
    Pool* pool
    bint is_private             # of a private pool: new memory or its own, one view per chunk, no waits
    Slab tiles, nodes, chunks, views
    uint32_t seed               # of the nodes' random weights
    Counts counts
    Region** regions            # by number
    size_t region_count, region_room
    Region* main                # the region that new memory is appended to
    Space* spaces
    size_t space_count, space_room
    Node* free_tiles            # by place
    Node* sizes                 # large free tiles by size
    Node* neighbours            # free tiles by the size of a large tile in use next to them
    Node* gaps                  # by place
    Tile* at_hand               # the block freed last, not yet free here: see at_hand
    uint64_t at_hand_freed      # its moment of the engine's clock
    Tile* loose                 # a free tile whose position in `sizes` is out of date: see tile_index
    bint lacks_aids             # host memory was short: `sizes` and `neighbours` may lack tiles, which does no harm
    DenseChunk* first_chunk
    DenseChunk* last_chunk
    size_t chunk_count
    uint64_t numbered           # chunks created so far
    Leftover* leftovers
    size_t leftover_count, leftover_room
    bytes_t reserved            # sum of its chunks
    bytes_t active              # bytes of it in use
    bytes_t peak                # peak use of all pools together; resetting statistics does not change it
    bytes_t freed               # so far, while `loading`
    bint loading                # until a notable amount was freed: the first allocations mostly stay
    uint64_t requests
    Probe* probes               # by the index of a stream
    size_t probe_count, probe_room
    bint streams_last           # other code promised not to destroy the streams whose handles it gives
    bint streams_end            # other code may destroy such streams; outweighs that promise
    bint witnessed              # chunks record when their bytes were freed


cdef inline Tile* tile_of(Block* block) noexcept nogil:
    """pre: belongs to an arena"""
    return <Tile*> block


cdef inline Region* region_of(const Tile* tile) noexcept nogil:
    return <Region*> tile.block.range


cdef inline Tile* tile_before(const Tile* tile) noexcept nogil:
    return <Tile*> tile.block.prev


cdef inline Tile* tile_behind(const Tile* tile) noexcept nogil:
    return <Tile*> tile.block.next


cdef inline address_t tile_end(const Tile* tile) noexcept nogil:
    return tile.block.address + tile.block.size


cdef inline address_t view_end(const View* view) noexcept nogil:
    return view.address + view.chunk.size


cdef inline uint64_t place_of(const Region* region, address_t address) noexcept nogil:
    return (region.number << OFFSET_BITS) | ((address - region.range.base) >> 9)


cdef inline bytes_t whole_granules(bytes_t size) noexcept nogil:
    """Round up."""
    return (size + (GRANULE - 1)) & ~(<bytes_t> (GRANULE - 1))


cdef inline bytes_t full_granules(bytes_t size) noexcept nogil:
    """Round down."""
    return size & ~(<bytes_t> (GRANULE - 1))
