"""The block freed last stays where it lies, in no index, until somebody looks for free memory.

The next request often has its size. It then gets the same bytes again, without a split, a join or a search, if that is
what the search would find: the block is `at hand`. Counters are those of a free block all the time; only tiles differ.

    ... used |   K: at hand    |   free   | used ...        a tile in use, whose block is not allocated
    ... used |             free           | used ...        once somebody looks (`settle`)

Only small blocks of the default pool are kept at hand, for which the search goes by place alone (see LARGE_TILE). Those
that other views show too are not handed out again without a search. None is kept while a request is under way that may
have released the lock: what follows then sees only settled tiles.
"""

from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport bytes_t, stream_t
from allotment._core.mechanism.block cimport note_free_completed
from allotment._core.mechanism.streams cimport next_moment
from allotment._core.model.model cimport Block, Engine, StreamRecord
from allotment._core.placement.dense.clocks cimport clock_clear, clock_note
from allotment._core.placement.dense.structures cimport Arena, Clock, tile_of
from allotment._core.placement.dense.tile_index cimport LARGE_TILE
from allotment._core.placement.dense.usage cimport count_given

cdef Block* hit_at_hand(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil
cdef void settle_slowly(Arena* arena) noexcept nogil


cdef inline void settle(Arena* arena) noexcept nogil:
    """Free the block at hand in the arena, as if it had never been kept."""
    if arena.at_hand != NULL:
        settle_slowly(arena)


cdef inline bint may_keep_at_hand(const Arena* arena, const Block* block) noexcept nogil:
    return (block.size < LARGE_TILE and arena.pool == &arena.engine.defaults and arena.pool.asking == 0
            and not arena.engine.trace.on)


cdef inline void keep_at_hand(Engine* engine, Arena* arena, Block* block) noexcept nogil:
    """Free a block, but leave its tile as it is. pre: settled, `may_keep_at_hand`"""
    cdef StreamRecord* stream = block.free_list.stream
    cdef uint64_t moment = next_moment(engine, stream)
    cdef Clock clock
    note_free_completed(engine, block, 0)
    clock_clear(&clock)
    clock_note(&clock, stream, moment)
    count_given(arena, tile_of(block), &clock)
    arena.at_hand = tile_of(block)
    arena.at_hand_freed = moment
