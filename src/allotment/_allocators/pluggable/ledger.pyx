from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from allotment._allocators.pluggable.ledger cimport Account, Entry, Ledger
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.model.sizes cimport SMALL_SIZE
from allotment._core.records.stats cimport (
    LARGE, SMALL, Stats, stats_init, stats_reset_accumulated, stats_reset_peak, tally_down, tally_grow, tally_now,
    tally_up)
from allotment._core.tools.forks cimport SHORT_LOCK, guard_forks, unguard_forks
from allotment._core.tools.lock cimport lock_give, lock_wait
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve
from allotment._core.tools.slab cimport slab_clear, slab_give, slab_init, slab_reserve, slab_take

cdef bytes_t NO_SPLIT = ~(<bytes_t> 0)      # the value of an unset setting: nothing is split here


cdef bint ledger_init(Ledger* ledger) noexcept nogil:
    memset(ledger, 0, sizeof(Ledger))
    slab_init(&ledger.records, sizeof(Entry))
    guard_forks(&ledger.fork_guard, SHORT_LOCK, &ledger.lock)
    return map_init(&ledger.entries)


cdef void ledger_clear(Ledger* ledger) noexcept nogil:
    cdef Account* account = ledger.accounts
    cdef Account* following
    unguard_forks(&ledger.fork_guard)
    while account != NULL:
        following = account.next
        free(account)
        account = following
    ledger.accounts = NULL
    map_clear(&ledger.entries)
    slab_clear(&ledger.records)


# --- accounts: all functions below run under the lock ---------------------------------------------------------

cdef Account* find_account(Ledger* ledger, device_t device) noexcept nogil:
    cdef Account* account = ledger.accounts
    while account != NULL and account.device != device:
        account = account.next
    return account


cdef Account* account_for(Ledger* ledger, device_t device) noexcept nogil:
    """Return a device's account, creating it on first use; NULL if the host has no memory for it."""
    cdef Account** link = &ledger.accounts
    while link[0] != NULL:
        if link[0].device == device:
            return link[0]
        link = &link[0].next
    link[0] = <Account*> calloc(1, sizeof(Account))
    if link[0] != NULL:
        link[0].device = device
        stats_init(&link[0].stats, NO_SPLIT)
    return link[0]


cdef inline int class_of(bytes_t size) noexcept nogil:
    return SMALL if size <= SMALL_SIZE else LARGE


cdef void count_in(Stats* stats, bytes_t size) noexcept nogil:
    cdef int size_class = class_of(size)
    tally_up(&stats.allocation, size_class, 1)
    tally_up(&stats.segment, size_class, 1)
    tally_grow(&stats.active, size_class, 1)
    tally_up(&stats.allocated_bytes, size_class, size)
    tally_up(&stats.reserved_bytes, size_class, size)
    tally_grow(&stats.active_bytes, size_class, size)
    tally_up(&stats.requested_bytes, size_class, size)
    stats.device_allocs += 1


cdef void count_out(Stats* stats, bytes_t size) noexcept nogil:
    cdef int size_class = class_of(size)
    tally_down(&stats.allocation, size_class, 1)
    tally_down(&stats.segment, size_class, 1)
    tally_down(&stats.active, size_class, 1)
    tally_down(&stats.allocated_bytes, size_class, size)
    tally_down(&stats.reserved_bytes, size_class, size)
    tally_down(&stats.active_bytes, size_class, size)
    tally_down(&stats.requested_bytes, size_class, size)
    stats.device_frees += 1


# --- entries -------------------------------------------------------------------------------------------------

cdef inline Entry* entry_at(Ledger* ledger, address_t address) noexcept nogil:
    """pre: under the lock"""
    if address == 0:
        return &ledger.null if ledger.null_is_out else NULL
    return <Entry*> map_get(&ledger.entries, address)


cdef Entry* entry_for(Ledger* ledger, address_t address) noexcept nogil:
    """Return a place for an address that has none; NULL if the host has no memory for it. pre: under the lock"""
    cdef Entry* entry
    if address == 0:
        ledger.null_is_out = True
        return &ledger.null
    if not (slab_reserve(&ledger.records, 1) and map_reserve(&ledger.entries)):
        return NULL
    entry = <Entry*> slab_take(&ledger.records)
    map_put(&ledger.entries, address, entry)
    return entry


cdef bint ledger_enter(Ledger* ledger, address_t address, bytes_t size, device_t device,
                       stream_t stream) noexcept nogil:
    cdef Account* account
    cdef Entry* entry = NULL
    lock_wait(&ledger.lock)
    account = account_for(ledger, device)
    if account != NULL:
        entry = entry_at(ledger, address)
        if entry == NULL:
            entry = entry_for(ledger, address)
            if entry != NULL:
                entry[0] = Entry(address, size, stream, device)
                if address != 0:
                    count_in(&account.stats, size)
        if address == 0 and size != 0:
            account.stats.ooms += 1
    lock_give(&ledger.lock)
    return entry != NULL


cdef void ledger_refused(Ledger* ledger, device_t device) noexcept nogil:
    cdef Account* account
    lock_wait(&ledger.lock)
    account = account_for(ledger, device)
    if account != NULL:
        account.stats.ooms += 1
    lock_give(&ledger.lock)


cdef bint ledger_remove(Ledger* ledger, address_t address, Entry* removed) noexcept nogil:
    cdef Entry* entry
    lock_wait(&ledger.lock)
    entry = entry_at(ledger, address)
    if entry != NULL:
        removed[0] = entry[0]
        if address == 0:
            ledger.null_is_out = False
        else:
            map_pop(&ledger.entries, address)
            slab_give(&ledger.records, entry)
            count_out(&find_account(ledger, removed.device).stats, removed.size)
    lock_give(&ledger.lock)
    return entry != NULL


cdef bint ledger_find(Ledger* ledger, address_t address, Entry* found) noexcept nogil:
    cdef Entry* entry
    lock_wait(&ledger.lock)
    entry = entry_at(ledger, address)
    if entry != NULL:
        found[0] = entry[0]
    lock_give(&ledger.lock)
    return entry != NULL


cdef bint ledger_find_around(Ledger* ledger, address_t address, Entry* found) noexcept nogil:
    cdef Entry* entry
    cdef size_t i = 0
    lock_wait(&ledger.lock)
    entry = <Entry*> map_get(&ledger.entries, address)
    while entry == NULL and i <= ledger.entries.mask:
        if ledger.entries.slots[i].key != 0 and (
                address - ledger.entries.slots[i].key < (<Entry*> ledger.entries.slots[i].value).size):
            entry = <Entry*> ledger.entries.slots[i].value
        i += 1
    if entry != NULL:
        found[0] = entry[0]
    lock_give(&ledger.lock)
    return entry != NULL


# --- figures -------------------------------------------------------------------------------------------------

cdef bytes_t ledger_live_bytes(Ledger* ledger) noexcept nogil:
    cdef Account* account
    cdef bytes_t sum = 0
    lock_wait(&ledger.lock)
    account = ledger.accounts
    while account != NULL:
        sum += tally_now(&account.stats.allocated_bytes)
        account = account.next
    lock_give(&ledger.lock)
    return sum


cdef void ledger_stats(Ledger* ledger, device_t device, Stats* copy) noexcept nogil:
    cdef Account* account
    stats_init(copy, NO_SPLIT)
    lock_wait(&ledger.lock)
    account = find_account(ledger, device)
    if account != NULL:
        copy[0] = account.stats
    lock_give(&ledger.lock)


cdef void ledger_reset_peak(Ledger* ledger, device_t device) noexcept nogil:
    cdef Account* account
    lock_wait(&ledger.lock)
    account = find_account(ledger, device)
    if account != NULL:
        stats_reset_peak(&account.stats)
    lock_give(&ledger.lock)


cdef void ledger_reset_accumulated(Ledger* ledger, device_t device) noexcept nogil:
    cdef Account* account
    lock_wait(&ledger.lock)
    account = find_account(ledger, device)
    if account != NULL:
        stats_reset_accumulated(&account.stats)
    lock_give(&ledger.lock)


cdef Entry* ledger_copy(Ledger* ledger, size_t* count) noexcept nogil:
    cdef Entry* copies
    cdef size_t place
    count[0] = 0
    lock_wait(&ledger.lock)
    copies = <Entry*> malloc((ledger.entries.count + 1) * sizeof(Entry))
    if copies != NULL:
        for place in range(ledger.entries.mask + 1):
            if ledger.entries.slots[place].key != 0:
                copies[count[0]] = (<Entry*> ledger.entries.slots[place].value)[0]
                count[0] += 1
    lock_give(&ledger.lock)
    return copies
