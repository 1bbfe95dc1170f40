from libc.stdlib cimport free
from libc.string cimport memset

from allotment._core.contract.types cimport bytes_t, count_t, int64_t
from allotment._core.records.stats cimport ALL, LARGE, SMALL, PoolTally, Stats, Tally, tally_now, tally_of


cdef void stats_init(Stats* stats, bytes_t max_split) noexcept nogil:
    memset(stats, 0, sizeof(Stats))
    stats.max_split = max_split


cdef void tally_raise(Tally* tally, int size_class) noexcept nogil:
    """Raise the peaks that were exceeded, and divide the room below the overall peak.

    The class that needs room gets most of it. The other class keeps some, or the two would take it from each other in
    turns.
    """
    cdef int other = LARGE - size_class
    cdef count_t now[2]
    cdef count_t spare, spare_of_other
    now[SMALL] = tally_of(tally, SMALL)
    now[LARGE] = tally_of(tally, LARGE)
    tally.peak[size_class] = max(tally.peak[size_class], now[size_class])
    tally.peak[ALL] = max(tally.peak[ALL], now[SMALL] + now[LARGE])
    spare = tally.peak[ALL] - now[SMALL] - now[LARGE]
    spare_of_other = min(tally.peak[other] - now[other], spare // 2)
    tally.room[other] = spare_of_other
    tally.room[size_class] = min(tally.peak[size_class] - now[size_class], spare - spare_of_other)
    tally.ceiling[SMALL] = now[SMALL] + tally.room[SMALL]
    tally.ceiling[LARGE] = now[LARGE] + tally.room[LARGE]


cdef enum:
    TALLIES = 11


cdef inline Tally* nth(Stats* stats, int i) noexcept nogil:
    # The tallies are adjacent at the start of Stats.
    return &(&stats.allocation)[i]


cdef void tally_reset_peak(Tally* tally) noexcept nogil:
    cdef int size_class
    tally.peak[ALL] = tally_now(tally)
    for size_class in range(2):
        tally.peak[size_class] = tally.ceiling[size_class] = tally_of(tally, size_class)
        tally.room[size_class] = 0


cdef void tally_reset_accumulated(Tally* tally) noexcept nogil:
    cdef int size_class
    for size_class in range(2):
        tally.total_mark[size_class] = tally.total[size_class]
        tally.freed_mark[size_class] = tally.total[size_class] - tally_of(tally, size_class)


cdef void for_each_tally(Stats* stats, void (*reset)(Tally* tally) noexcept nogil) noexcept nogil:
    cdef PoolTally* pool = stats.pools
    cdef int i
    for i in range(TALLIES):
        reset(nth(stats, i))
    while pool != NULL:
        reset(&pool.reserved_bytes)
        pool = pool.next


cdef void stats_reset_peak(Stats* stats) noexcept nogil:
    for_each_tally(stats, tally_reset_peak)


cdef void copy_shared_totals(Stats* stats) noexcept nogil:
    """Copy the totals of tallies whose totals another tally counts."""
    cdef int size_class
    for size_class in range(2):
        stats.active.total[size_class] = stats.allocation.total[size_class]
        stats.active_bytes.total[size_class] = stats.allocated_bytes.total[size_class]


cdef void stats_reset_accumulated(Stats* stats) noexcept nogil:
    copy_shared_totals(stats)
    for_each_tally(stats, tally_reset_accumulated)
    stats.alloc_retries = stats.ooms = stats.oom_rejections = stats.sync_all_streams = 0
    stats.device_allocs = stats.device_frees = 0


cdef void stats_clear(Stats* stats) noexcept nogil:
    cdef PoolTally* pool
    while stats.pools != NULL:
        pool = stats.pools
        stats.pools = pool.next
        free(pool)


cdef dict tally_of_class(const Tally* tally, int size_class):
    return {
        "current": tally_of(tally, size_class),
        "peak": tally.peak[size_class],
        "allocated": tally.total[size_class] - tally.total_mark[size_class],
        "freed": tally.total[size_class] - tally_of(tally, size_class) - tally.freed_mark[size_class],
    }


cdef dict tally_of_all(const Tally* tally):
    cdef dict small = tally_of_class(tally, SMALL)
    cdef dict large = tally_of_class(tally, LARGE)
    cdef dict both = {key: small[key] + large[key] for key in small}
    both["peak"] = tally.peak[ALL]
    return both


cdef dict tally_dict(const Tally* tally):
    return {
        "all": tally_of_all(tally),
        "small_pool": tally_of_class(tally, SMALL),
        "large_pool": tally_of_class(tally, LARGE),
    }


cdef dict pool_tallies(const Stats* stats):
    cdef dict tallies = {}
    cdef const PoolTally* pool = stats.pools
    while pool != NULL:
        if pool.used:
            tallies[f"{pool.first}_{pool.second}"] = tally_dict(&pool.reserved_bytes)
        pool = pool.next
    return tallies


cdef dict stats_nested(Stats* stats):
    copy_shared_totals(stats)
    return {
        "num_alloc_retries": stats.alloc_retries,
        "num_ooms": stats.ooms,
        "max_split_size": <int64_t> stats.max_split,
        "num_sync_all_streams": stats.sync_all_streams,
        "num_device_alloc": stats.device_allocs,
        "num_device_free": stats.device_frees,
        "allocation": tally_dict(&stats.allocation),
        "segment": tally_dict(&stats.segment),
        "active": tally_dict(&stats.active),
        "inactive_split": tally_dict(&stats.inactive_split),
        "allocated_bytes": tally_dict(&stats.allocated_bytes),
        "reserved_bytes": tally_dict(&stats.reserved_bytes),
        "active_bytes": tally_dict(&stats.active_bytes),
        "inactive_split_bytes": tally_dict(&stats.inactive_split_bytes),
        "requested_bytes": tally_dict(&stats.requested_bytes),
        "oversize_allocations": tally_of_all(&stats.oversize_allocations),
        "oversize_segments": tally_of_all(&stats.oversize_segments),
    }


cdef dict stats_by_rules(Stats* stats, object rules):
    cdef dict nested = stats_nested(stats)
    if rules.counts_rejections:
        nested["num_oom_rejections"] = stats.oom_rejections
    if rules.counts_private_pools:
        nested["reserved_bytes_by_private_pools"] = pool_tallies(stats)
    return nested


cdef int flatten(dict flat, str prefix, dict nested) except -1:
    for key, value in nested.items():
        if isinstance(value, dict):
            flatten(flat, f"{prefix}{key}.", value)
        else:
            flat[prefix + key] = value
    return 0


cdef dict stats_flat(dict nested):
    cdef dict flat = {}
    flatten(flat, "", nested)
    return dict(sorted(flat.items()))
