"""Dense placement: one arena for all streams and sizes, which puts free memory side by side before it grows.

This is the place of the folder that decides, with `growth` for step 7; the others do what they are told. A request goes
down this list until it has its bytes. `s` is its stream; memory is *ready* for s if s comes after all who freed it.

    hit    1  large: a free tile of exactly its size, ready
           2  large: a free tile beside a tile in use of exactly its size, ready; at that end of it
           3  the lowest free tile that is large enough, ready
    miss   4  the lowest free tile that is large enough, after s has waited for who freed it
           5  while a stream has more than a few blocks that wait for other streams: the oldest of those, after
              s has waited for its events; then 1 to 4
           6  the free-memory callbacks, then 1 to 5 if one of them freed something; garbage, if that is collected
           7  grow: new memory while that stays within a hundredth of the most ever in use, in a gap if that takes no
              more, else the cheapest plan
           8  refused: 5 with every waiting block; wait for all events; have the memory of pools without users; the
              plan with the least new memory; wait for all streams; give everything free back and grow; a lender;
              out of memory

Inside a capture nothing may be waited for: 4, 5 and the plans are left out, and growing takes fresh memory. A private
pool has an arena of its own, and does the same always: what a graph replays later must not be shared.

Wherever work is waited for, others come and go meanwhile (see `stepping_out`): nothing that was found before is
used after that.
"""

from allotment._core.model.model cimport Engine, Placement

cdef const Placement* dense_placement() noexcept nogil
cdef dict dense_figures(Engine* engine)     # of the default pool; None if it has another placement
cdef list dense_views(Engine* engine)       # where each chunk of it is mapped; None likewise
