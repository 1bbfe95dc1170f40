"""What PyTorch's allocator interface needs from our allocators beyond the entry points: see allotment_points.h."""

from libc.string cimport memset

from allotment.torch._deep.blocks cimport fill_blocks
from allotment.torch._deep.control cimport fill_control
from allotment.torch._deep.failing cimport fill_failing, note
from allotment.torch._deep.figures cimport fill_figures
from allotment.torch._deep.header cimport ALLOTMENT_DEVICES_MOST, ALLOTMENT_POINTS_VERSION, allotment_points
from allotment.torch._deep.history cimport fill_history
from allotment.torch._deep.pools cimport fill_pools
from allotment.torch._deep.served cimport fill_served, served_at, settled_table
from allotment.torch._deep.snapshots cimport fill_snapshots


cdef void* table_of(int device) noexcept nogil:
    if 0 <= device < ALLOTMENT_DEVICES_MOST and served_at(device).table != NULL:
        return served_at(device).table
    return new_table_of(device)


cdef void* new_table_of(int device) noexcept with gil:
    try:
        return settled_table(device)
    except BaseException as error:
        note(error)
        return NULL


cdef allotment_points table
memset(&table, 0, sizeof(allotment_points))
table.size = sizeof(allotment_points)
table.version = ALLOTMENT_POINTS_VERSION
table.table_of = table_of
fill_served(&table)
fill_failing(&table)
fill_blocks(&table)
fill_figures(&table)
fill_pools(&table)
fill_history(&table)
fill_snapshots(&table)
fill_control(&table)


def address() -> int:
    """The table of points, for the stand-in."""
    return <size_t> &table
