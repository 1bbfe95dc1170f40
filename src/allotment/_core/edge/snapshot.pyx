"""Copies of the engine's records as the dictionaries that PyTorch's memory tools read.

Each stack's frames are created once and shared by all entries that show it, as in PyTorch. Garbage collection is
disabled while a list is built: everything in the list is alive, so a collection every few hundred dictionaries would
find nothing.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.string cimport memset

from allotment._core.edge.walk cimport Arrangement, BlockCopy, SegmentCopy
from allotment._core.edge.words cimport (
    ACTION, ADDR, COMPILE_CONTEXT, DEVICE_FREE, FRAMES, INTERNAL_METADATA, NO_CONTEXT, POOL_ID, SIZE, STATES, STREAM,
    TENANT, TIME_US, USER_METADATA, WORDS, action_name)
from allotment._core.records.history cimport name_of, stack_frames
from allotment._core.records.tenants cimport stack_of, tenant_name, tenant_of
from allotment._core.records.trace cimport ACTION_OOM, TraceRecord
from allotment._core.tools.interpreter cimport collect_again, stop_collecting

from allotment._core.edge.words import SegmentType, word_of

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object container)

cdef tuple SEGMENT_TYPES = (word_of(SegmentType.SMALL), word_of(SegmentType.LARGE))
cdef str EXACT_ADDRESS = "mallocWithAddress"


def assembled(
    segments: list[dict[str, Any]],
    histories: dict[int, list[dict[str, Any]]],
    device_count: int,
    settings: dict[str, Any],
    annotations: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a snapshot made of its parts: the history of each device by its index, and the fields of all devices."""
    return {
        "segments": segments,
        "device_traces": [histories.get(device, []) for device in range(device_count)],
        "allocator_settings": settings,
        "external_annotations": annotations,
    }


cdef inline int name_tenant(dict shown, uint32_t context) except -1:
    """Add one field that PyTorch does not write, only if the context has a tenant."""
    if tenant_of(context) != 0:
        shown[WORDS[TENANT]] = tenant_name(context)
    return 0


cdef inline list frames_of(uint32_t context, dict known):
    """Return the frames of a stack, cached in `known`; for no stack, a new list."""
    if stack_of(context) == 0:
        return []
    frames = known.get(stack_of(context))
    if frames is None:
        frames = known[stack_of(context)] = stack_frames(context)
    return frames


cdef dict block_dict(const BlockCopy* block, dict known):
    cdef dict shown = {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": STATES[block.state],
        "frames": frames_of(block.context, known),
    }
    name_tenant(shown, block.context)
    return shown


cdef dict segment_dict(const SegmentCopy* segment, const BlockCopy* blocks, int device, dict known):
    cdef size_t i
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.total,
        "allocated_size": segment.allocated,
        "active_size": segment.active,
        "requested_size": segment.requested,
        "stream": segment.stream,
        "segment_type": SEGMENT_TYPES[not segment.is_small],
        "segment_pool_id": (segment.pool_first, segment.pool_second),
        "is_expandable": bool(segment.is_expandable),
        "frames": frames_of(segment.context, known),
        "blocks": [block_dict(&blocks[segment.first_block + i], known) for i in range(segment.block_count)],
    }


cdef list segment_dicts(const Arrangement* arrangement, int device):
    cdef dict known = {}
    cdef bint collects = stop_collecting()
    cdef size_t i
    try:
        return [segment_dict(&arrangement.segments[i], arrangement.blocks, device, known)
                for i in range(arrangement.segment_count)]
    finally:
        collect_again(collects)


cdef tuple pool_id_of(const TraceRecord* record):
    pool_id = (record.pool_first, record.pool_second)
    # The collector itself does this to a tuple of numbers. It also ignores a dictionary without tracked values, so a
    # long history does not slow down every collection while a caller holds it.
    PyObject_GC_UnTrack(pool_id)
    return pool_id


cdef dict out_of_memory_dict(dict entry):
    return {WORDS[DEVICE_FREE] if key == WORDS[ADDR] else key: value for key, value in entry.items()}


cdef str user_metadata(const TraceRecord* record, object rules):
    """Return the user's text. Under some rules, the allocator's own note is appended to it."""
    cdef str text = name_of(record.metadata)
    if not record.exact_address or rules.exact_address_mark != "user":
        return text
    return f"{text}\n{EXACT_ADDRESS}" if text else EXACT_ADDRESS


cdef str internal_metadata(const TraceRecord* record, object rules):
    """Return the allocator's own note, if the rules keep it in a separate field."""
    return EXACT_ADDRESS if record.exact_address and rules.exact_address_mark == "internal" else ""


cdef list entry_dicts(const TraceRecord* records, size_t count, object rules):
    # An entry mostly equals the one before it. So the code updates one dictionary with the differences and copies it
    # for each entry: unchanged values cost neither a new object nor a lookup. The dictionary begins as `last` does.
    cdef dict running, entry
    cdef dict known = {}
    cdef list frames = []
    cdef list entries = []
    cdef TraceRecord last
    cdef const TraceRecord* record
    cdef size_t i
    cdef bint names_pools = rules.trace_names_pools
    memset(&last, 0, sizeof(TraceRecord))
    running = {
        WORDS[ACTION]: action_name(0), WORDS[ADDR]: 0, WORDS[SIZE]: 0, WORDS[STREAM]: 0, WORDS[TIME_US]: 0,
        WORDS[COMPILE_CONTEXT]: NO_CONTEXT, WORDS[USER_METADATA]: ""}
    if names_pools:
        running[WORDS[POOL_ID]] = pool_id_of(&last)
    for i in range(count):
        record = &records[i]
        if record.action != last.action:
            running[WORDS[ACTION]] = action_name(record.action)
        if record.address != last.address:
            running[WORDS[ADDR]] = record.address
        if record.size != last.size:
            running[WORDS[SIZE]] = record.size
        if record.stream != last.stream:
            running[WORDS[STREAM]] = record.stream
        if record.time_us != last.time_us:
            running[WORDS[TIME_US]] = record.time_us
        if record.compile_context != last.compile_context:
            running[WORDS[COMPILE_CONTEXT]] = name_of(record.compile_context) or NO_CONTEXT
        if record.metadata != last.metadata or record.exact_address != last.exact_address:
            running[WORDS[USER_METADATA]] = user_metadata(record, rules)
        if names_pools and (record.pool_first != last.pool_first or record.pool_second != last.pool_second):
            running[WORDS[POOL_ID]] = pool_id_of(record)
        if record.stack != last.stack:
            frames = frames_of(record.stack, known)
        last = record[0]
        entry = running.copy() if record.action != ACTION_OOM else out_of_memory_dict(running)
        if stack_of(record.stack) != 0:
            entry[WORDS[FRAMES]] = frames
        if record.exact_address and internal_metadata(record, rules):
            entry[WORDS[INTERNAL_METADATA]] = internal_metadata(record, rules)
        name_tenant(entry, record.stack)
        entries.append(entry)
    return entries


cdef list trace_dicts(const TraceRecord* records, size_t count, object rules):
    cdef bint collects = stop_collecting()
    try:
        return entry_dicts(records, count, rules)
    finally:
        collect_again(collects)
