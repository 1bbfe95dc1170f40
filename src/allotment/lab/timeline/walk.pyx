# cython: boundscheck=False, nonecheck=False
# Columns of one length, made by `Timeline` and checked there.
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from allotment.lab.timeline.walk cimport (
    BEGINS, CAUSES, ENDS, FOR_OTHER_STREAM, IN_OTHER_POOL, OTHER_STREAMS, PIECES, PRIVATE_POOLS, REACHABLE, ROUNDING,
    UNRELEASED, WAITING, WAITS, Totals, What)

from enum import IntEnum

import numpy

from allotment.lab.timeline.columns import Columns


class Event(IntEnum):
    """What happens to the life of a moment."""

    NOTHING = What.NOTHING
    BEGINS = What.BEGINS
    ENDS = What.ENDS
    WAITS = What.WAITS


class UnitReach(IntEnum):
    """The relation of a unit of memory to the request that the waste is computed for."""

    REACHABLE = 0
    FOR_OTHER_STREAM = 1
    IN_OTHER_POOL = 2


assert (REACHABLE, FOR_OTHER_STREAM, IN_OTHER_POOL) == tuple(UnitReach)


cdef class Walk:
    """Walk(lives, units, atoms)\n--\n
    A place in the history. `lives` and `units` are columns by name: see walk.pxd.
    """

    def __init__(self, lives: dict[str, NDArray[Any]], units: dict[str, NDArray[Any]],
                 atoms: int) -> None:
        self.size, self.requested = lives["size"], lives["requested"]
        self.freed = lives["freed"]
        self.first_atom, self.last_atom = lives["first_atom"], lives["last_atom"]
        self.life_at, self.what_at, self.late = lives["life_at"], lives["what_at"], lives["late"]
        self.late_at = lives["end"][lives["late"]]
        self.unit_size = units["size"]
        self.unit_first, self.unit_last = units["first_atom"], units["last_atom"]
        self.coming, self.going, self.reach = units["coming"], units["going"], units["reach"]
        self.coming_at, self.going_at = units["begin"][units["coming"]], units["end"][units["going"]]
        self.moments = len(lives["life_at"])
        self.reach_of = numpy.zeros(len(self.size), dtype=numpy.uint8)
        self.live = numpy.zeros(len(self.size), dtype=numpy.int32)
        self.place = numpy.zeros(len(self.size), dtype=numpy.int32)
        self.blocks = numpy.zeros(len(self.unit_size), dtype=numpy.int32)
        self.unit_at = numpy.zeros(atoms, dtype=numpy.int32)

    def start(self, moment: int, live: NDArray[np.int32], units: NDArray[np.int32],
              band: NDArray[np.uint8], bands: int) -> None:
        """Move to a moment with these lives and units; `band` has the owner of each life."""
        cdef const int32_t[::1] lives = live
        cdef const int32_t[::1] mapped = units
        cdef int32_t i
        memset(&self.totals, 0, sizeof(Totals))
        self.band = band
        self.held = numpy.zeros(bands, dtype=numpy.int64)
        self.unit_at[:] = -1
        self.blocks[:] = 0
        self.live_count = 0
        self.now = moment
        self.next_late = numpy.searchsorted(self.late_at, moment, "right")
        self.next_coming = numpy.searchsorted(self.coming_at, moment, "right")
        self.next_going = numpy.searchsorted(self.going_at, moment, "right")
        with nogil:
            for i in range(<int32_t> mapped.shape[0]):
                self.obtain(mapped[i])
            for i in range(<int32_t> lives.shape[0]):
                self.begin_life(lives[i])
                if self.freed[lives[i]] <= self.now:
                    self.begin_waiting(lives[i])

    def alive(self) -> NDArray[np.int32]:
        """Return the current lives, in no order."""
        return numpy.asarray(self.live)[: self.live_count].copy()

    def run(self, edges: NDArray[np.int32]) -> Columns:
        """Walk to the last of these moments; an interval spans from one of them up to the next, exclusive.

        pre: they rise, and the first is now
        """
        cdef const int32_t[::1] ends = edges
        cdef Py_ssize_t count = len(edges) - 1
        cdef Py_ssize_t bands = self.held.shape[0]
        cdef int32_t[::1] moment = numpy.zeros(count, dtype=numpy.int32)
        cdef int64_t[:, ::1] held = numpy.zeros((count, bands), dtype=numpy.int64)
        cdef int32_t[::1] waste_moment = numpy.zeros(count, dtype=numpy.int32)
        cdef int64_t[:, ::1] waste = numpy.zeros((count, CAUSES), dtype=numpy.int64)
        cdef int64_t[::1] reserved = numpy.zeros(count, dtype=numpy.int64)
        cdef int64_t most_live, most_waste, total
        cdef int32_t t
        cdef Py_ssize_t i
        with nogil:
            for i in range(count):
                most_live = most_waste = -1
                for t in range(ends[i], ends[i + 1]):
                    self.step_to(t)
                    if self.totals.requested > most_live:
                        most_live = self.totals.requested
                        moment[i] = t
                        memcpy(&held[i, 0], &self.held[0], bands * sizeof(int64_t))
                    total = self.totals.reserved[0] + self.totals.reserved[1] + self.totals.reserved[2]
                    reserved[i] = max(reserved[i], total)
                    if total - self.totals.requested > most_waste:
                        most_waste = total - self.totals.requested
                        waste_moment[i] = t
                        self.tell_waste(&waste[i, 0])
            if ends[count] < self.moments:
                self.step_to(ends[count])
        return Columns(
            moment=numpy.asarray(moment),
            bands=numpy.asarray(held),
            waste_moment=numpy.asarray(waste_moment),
            waste=numpy.asarray(waste),
            reserved=numpy.asarray(reserved),
        )

    cdef void tell_waste(self, int64_t* out) noexcept nogil:
        cdef const Totals* totals = &self.totals
        cdef int64_t active = totals.active[0] + totals.active[1] + totals.active[2]
        out[ROUNDING] = totals.allocated - totals.requested
        out[WAITING] = active - totals.allocated
        out[OTHER_STREAMS] = totals.reserved[FOR_OTHER_STREAM] - totals.active[FOR_OTHER_STREAM]
        out[PRIVATE_POOLS] = totals.reserved[IN_OTHER_POOL] - totals.active[IN_OTHER_POOL]
        out[UNRELEASED] = totals.releasable
        out[PIECES] = totals.reserved[REACHABLE] - totals.active[REACHABLE] - totals.releasable

    cdef void step_to(self, int32_t moment) noexcept nogil:
        cdef int what
        cdef int32_t life
        if moment == self.now:
            return
        self.now = moment
        what = self.what_at[moment]
        life = self.life_at[moment]
        if what == ENDS:
            self.end_life(life, False)
        elif what == WAITS:
            self.begin_waiting(life)
        while self.next_late < self.late.shape[0] and self.late_at[self.next_late] <= moment:
            self.end_life(self.late[self.next_late], True)
            self.next_late += 1
        while self.next_going < self.going.shape[0] and self.going_at[self.next_going] <= moment:
            self.release(self.going[self.next_going])
            self.next_going += 1
        while self.next_coming < self.coming.shape[0] and self.coming_at[self.next_coming] <= moment:
            self.obtain(self.coming[self.next_coming])
            self.next_coming += 1
        if what == BEGINS:
            self.begin_life(life)

    # --- blocks ----------------------------------------------------------------------------------------------

    cdef void begin_life(self, int32_t life) noexcept nogil:
        cdef int32_t unit = self.unit_at[self.first_atom[life]]
        self.reach_of[life] = self.reach[unit] if unit >= 0 else REACHABLE
        self.totals.requested += self.requested[life]
        self.totals.allocated += self.size[life]
        self.totals.active[self.reach_of[life]] += self.size[life]
        self.held[self.band[life]] += self.requested[life]
        self.count_in_units(life, 1)
        self.place[life] = self.live_count
        self.live[self.live_count] = life
        self.live_count += 1

    cdef void begin_waiting(self, int32_t life) noexcept nogil:
        self.totals.requested -= self.requested[life]
        self.totals.allocated -= self.size[life]
        self.held[self.band[life]] -= self.requested[life]

    cdef void end_life(self, int32_t life, bint waited) noexcept nogil:
        cdef int32_t last = self.live[self.live_count - 1]
        if not waited:
            self.begin_waiting(life)
        self.totals.active[self.reach_of[life]] -= self.size[life]
        self.count_in_units(life, -1)
        self.live[self.place[life]] = last
        self.place[last] = self.place[life]
        self.live_count -= 1

    cdef void count_in_units(self, int32_t life, int32_t change) noexcept nogil:
        cdef int32_t seen = -1
        cdef int32_t atom, unit
        for atom in range(self.first_atom[life], self.last_atom[life] + 1):
            unit = self.unit_at[atom]
            if unit < 0 or unit == seen or self.blocks[unit] + change < 0:
                continue
            seen = unit
            if self.reach[unit] == REACHABLE:
                if self.blocks[unit] == 0:
                    self.totals.releasable -= self.unit_size[unit]
                elif self.blocks[unit] + change == 0:
                    self.totals.releasable += self.unit_size[unit]
            self.blocks[unit] += change

    # --- memory ----------------------------------------------------------------------------------------------

    cdef void obtain(self, int32_t unit) noexcept nogil:
        cdef int32_t atom
        self.totals.reserved[self.reach[unit]] += self.unit_size[unit]
        if self.reach[unit] == REACHABLE:
            self.totals.releasable += self.unit_size[unit]
        self.blocks[unit] = 0
        for atom in range(self.unit_first[unit], self.unit_last[unit] + 1):
            self.unit_at[atom] = unit

    cdef void release(self, int32_t unit) noexcept nogil:
        cdef int32_t atom
        self.totals.reserved[self.reach[unit]] -= self.unit_size[unit]
        if self.reach[unit] == REACHABLE and self.blocks[unit] == 0:
            self.totals.releasable -= self.unit_size[unit]
        for atom in range(self.unit_first[unit], self.unit_last[unit] + 1):
            if self.unit_at[atom] == unit:
                self.unit_at[atom] = -1
