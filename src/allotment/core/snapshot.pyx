"""Copies of the engine's records as the dictionaries that PyTorch's memory tools read."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment.core.history cimport name_of, stack_frames
from allotment.core.tenants cimport stack_of, tenant_name, tenant_of
from allotment.core.trace cimport ACTION_OOM, TraceRecord
from allotment.core.walk cimport Arrangement, BlockCopy, SegmentCopy

cdef tuple ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom")
cdef tuple STATES = ("inactive", "active_pending_free", "active_allocated")


cdef str action_name(int action):
    return ACTIONS[action]


cdef int action_number(str name) except -2:
    """-1 for a name that is none."""
    return ACTIONS.index(name) if name in ACTIONS else -1


cdef inline int name_tenant(dict shown, uint32_t context) except -1:
    """One field more than PyTorch writes, and only where there is something to say."""
    if tenant_of(context) != 0:
        shown["tenant"] = tenant_name(context)
    return 0


cdef dict block_dict(const BlockCopy* block):
    cdef dict shown = {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": STATES[block.state],
        "frames": stack_frames(block.context),
    }
    name_tenant(shown, block.context)
    return shown


cdef list segment_dicts(const Arrangement* arrangement, int device):
    cdef const SegmentCopy* segment
    cdef size_t i, j
    cdef list found = []
    for i in range(arrangement.segment_count):
        segment = &arrangement.segments[i]
        found.append({
            "device": device,
            "address": segment.address,
            "total_size": segment.total,
            "allocated_size": segment.allocated,
            "active_size": segment.active,
            "requested_size": segment.requested,
            "stream": segment.stream,
            "segment_type": "small" if segment.is_small else "large",
            "segment_pool_id": (segment.pool_first, segment.pool_second),
            "is_expandable": bool(segment.is_expandable),
            "frames": stack_frames(segment.context),
            "blocks": [block_dict(&arrangement.blocks[segment.first_block + j]) for j in range(segment.block_count)],
        })
    return found


cdef dict trace_dict(const TraceRecord* record):
    cdef dict entry = {
        "action": ACTIONS[record.action],
        "device_free" if record.action == ACTION_OOM else "addr": record.address,
        "size": record.size,
        "stream": record.stream,
        "time_us": record.time_us,
        "compile_context": name_of(record.compile_context) or "N/A",
        "user_metadata": name_of(record.metadata),
        "pool_id": (record.pool_first, record.pool_second),
    }
    if stack_of(record.stack) != 0:
        entry["frames"] = stack_frames(record.stack)
    name_tenant(entry, record.stack)
    return entry
