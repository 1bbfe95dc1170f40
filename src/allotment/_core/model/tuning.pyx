"""From the settings record that people read to the numbers that the engine reads."""

from allotment._core.model.sizes cimport DIVISION_SLOTS, Tuning


cdef int fill_tuning(Tuning* tuning, object settings) except -1:
    cdef Tuning fresh
    cdef int slot
    fresh.max_split = settings.max_split_size
    fresh.max_non_split_rounding = settings.max_non_split_rounding
    fresh.large_segment = settings.large_segment_size
    fresh.gc_threshold = settings.garbage_collection_threshold
    fresh.divided = False
    for slot in range(DIVISION_SLOTS):
        fresh.divisions[slot] = settings.roundup_power2_divisions[slot]
        fresh.divided |= fresh.divisions[slot] > 1
    fresh.expandable = settings.expandable_segments
    fresh.stream_reuse = settings.graph_capture_record_stream_reuse
    fresh.release_lock = settings.release_lock_on_device_malloc
    tuning[0] = fresh
    return 0
