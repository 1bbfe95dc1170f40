"""Copies the settings record, which people read, to the numbers that the engine reads."""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.sizes cimport DIVISION_SLOTS, Tuning

# More than any request. Larger sizes mean the same, and the sum of two such sizes stays below 2**64.
cdef bytes_t MOST = <bytes_t> 1 << 60


cdef int fill_tuning(Tuning* tuning, object settings) except -1:
    cdef Tuning fresh
    cdef int slot
    fresh.max_split = settings.max_split_size
    fresh.max_non_split_rounding = min(<bytes_t> settings.max_non_split_rounding, MOST)
    fresh.large_segment = min(<bytes_t> settings.large_segment_size, MOST)
    fresh.exact_above = ~(<bytes_t> 0)
    fresh.gc_threshold = settings.garbage_collection_threshold
    fresh.divided = False
    for slot in range(DIVISION_SLOTS):
        fresh.divisions[slot] = settings.roundup_power2_divisions[slot]
        fresh.divided |= fresh.divisions[slot] > 1
    fresh.expandable = settings.expandable_segments
    fresh.stream_reuse = settings.graph_capture_record_stream_reuse
    fresh.release_lock = settings.release_lock_on_device_malloc
    fresh.dense_grain = settings.dense_grain
    fresh.dense_slack = round(settings.dense_slack * 1_000_000)
    fresh.dense_wait_reuse = settings.dense_wait_reuse
    fresh.dense_share_streams = settings.dense_share_streams
    fresh.dense_start = settings.dense_start
    fresh.dense_views = settings.dense_views
    fresh.rejects = settings.throw_on_cudamalloc_oom
    fresh.share = settings.per_process_memory_fraction
    fresh.range_bytes = 0           # the caller fills it in: it may be a fraction of the device's memory
    tuning[0] = fresh
    return 0
