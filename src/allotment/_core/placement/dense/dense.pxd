"""Dense placement: one arena for all streams and sizes, which makes free memory contiguous before it grows.

This file decides, together with `growth` for step 7; the other files of this folder carry it out. A request goes down
this list until it has its bytes. `s` is its stream; memory is *ready* for s if s is ordered after all streams that
freed it.

    hit    1  large: a free tile of exactly its size, ready
           2  large: a free tile next to a tile in use of exactly its size, ready; at that end of it
           3  the lowest free tile that is large enough, ready
    miss   4  the lowest free tile that is large enough, after s has waited for the streams that freed it
           5  while a stream has more than a few blocks that wait for other streams: the oldest of those, after
              s has waited for its events; then 1 to 4
           6  the free-memory callbacks, then 1 to 5 if one of them freed something; garbage collection, if enabled
           7  grow: new memory while it stays within a hundredth of peak use, in a gap if that takes no
              more, else the cheapest plan
           8  refused: 5 with every waiting block; wait for all events; take the memory of pools without users; the
              plan with the least new memory; wait for all streams; release everything free and grow; a lender;
              out of memory

Inside a capture no stream may wait: 4, 5 and the plans are skipped, and growing takes new memory. A private pool has
its own arena and always does so: memory that a graph replays later must not be shared.

Every wait for work releases the lock (see `unlocked_section`), so the code uses nothing afterwards that it found
before.
"""

from allotment._core.model.model cimport Engine, Placement

cdef const Placement* dense_placement() noexcept nogil
cdef void dense_note_streams(Engine* engine, bint last) noexcept nogil     # see `streams_last` and `streams_end`
cdef dict dense_figures(Engine* engine)     # of the default pool; None if it has another placement
cdef list dense_views(Engine* engine)       # where each of its chunks is mapped; None likewise
