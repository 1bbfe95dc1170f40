"""Plain segments from anonymous mappings; the machine's memory as a device's."""

import os

from libc cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport free as free_memory, strtoull
from libc.string cimport memset, strdup, strlen, strncmp, strstr
from posix.fcntl cimport O_RDONLY, open
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap)
from posix.unistd cimport _SC_PAGESIZE, close, read, sysconf

from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY
from allotment._core.tools.forks cimport SHORT_MUTEX, guard_forks, unguard_forks
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve
from allotment._devices.shared.posix cimport (
    ACQ_REL, RELAXED, atomic_add, atomic_load, atomic_store, atomic_subtract, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)
from allotment._devices.shared.refusal cimport refuse, refuse_number, refuse_system

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t length, int advice)
    int MADV_HUGEPAGE

cdef enum:
    HUGE_PAGE = 2 << 20
    HUGE_FROM = 4 << 20             # a smaller segment may hold little, and a huge page is taken whole
    FILE_CAPACITY = 16384           # /proc/meminfo and memory.stat are well below 8 KiB

cdef uint64_t NO_LIMIT = <uint64_t> 0xFFFF_FFFF_FFFF_FFFF


cdef int memory_open(HostMemory* memory, object groups) except -1:
    cdef bytes_t unused
    memset(memory, 0, sizeof(HostMemory))
    memory.page = sysconf(_SC_PAGESIZE)
    try:
        for group in groups[:MAX_GROUPS]:
            add_group(memory, group)
        if memory_info(memory, &unused, &memory.total) != OK:
            raise OSError("/proc/meminfo does not tell how much memory there is")
        if not map_init(&memory.segments):
            raise MemoryError("the host has no memory for the records of the host device")
    except BaseException:
        forget_groups(memory)
        raise
    pthread_mutex_init(&memory.mutex, NULL)
    guard_forks(&memory.fork_guard, SHORT_MUTEX, &memory.mutex)
    return 0


cdef void memory_close(HostMemory* memory) noexcept nogil:
    unguard_forks(&memory.fork_guard)
    pthread_mutex_destroy(&memory.mutex)
    map_clear(&memory.segments)
    forget_groups(memory)


cdef int add_group(HostMemory* memory, object group) except -1:
    cdef LimitFiles* files = &memory.groups[memory.group_count]
    memory.group_count += 1
    files.limit = strdup(os.fsencode(group.limit))
    files.usage = strdup(os.fsencode(group.usage))
    files.details = strdup(os.fsencode(group.details))
    files.reclaimable = strdup(group.reclaimable.encode())
    if files.limit == NULL or files.usage == NULL or files.details == NULL or files.reclaimable == NULL:
        raise MemoryError("the host has no memory for the records of the host device")
    return 0


cdef void forget_groups(HostMemory* memory) noexcept nogil:
    for at in range(memory.group_count):
        free_memory(memory.groups[at].limit)
        free_memory(memory.groups[at].usage)
        free_memory(memory.groups[at].details)
        free_memory(memory.groups[at].reclaimable)
    memory.group_count = 0


cdef status_t memory_take(HostMemory* memory, bytes_t size) noexcept nogil:
    cdef bytes_t total = atomic_load(&memory.total, RELAXED)
    if size <= total and atomic_add(&memory.used, size, ACQ_REL) <= total:
        return OK
    if size <= total:
        atomic_subtract(&memory.used, size, ACQ_REL)
    return refuse_number(OUT_OF_MEMORY, b"%llu bytes more would exceed the memory of this host", size)


cdef void memory_return(HostMemory* memory, bytes_t size) noexcept nogil:
    atomic_subtract(&memory.used, size, ACQ_REL)


cdef status_t memory_info(HostMemory* memory, bytes_t* free, bytes_t* total) noexcept nogil:
    cdef char[FILE_CAPACITY] text
    cdef uint64_t most = number_after(b"MemTotal:", b"/proc/meminfo", text)
    cdef uint64_t available = number_after(b"MemAvailable:", b"/proc/meminfo", text)
    cdef uint64_t limit, usage, reclaimable
    cdef LimitFiles* files
    if most == NO_LIMIT or available == NO_LIMIT:
        return refuse_system(b"/proc/meminfo", errno.errno)
    most *= 1024
    available *= 1024
    for at in range(memory.group_count):
        files = &memory.groups[at]
        limit = number_after(b"", files.limit, text)
        usage = number_after(b"", files.usage, text)
        if limit == NO_LIMIT or usage == NO_LIMIT:
            continue
        reclaimable = number_after(files.reclaimable, files.details, text)
        if reclaimable != NO_LIMIT:
            usage -= min(usage, reclaimable)
        most = min(most, limit)
        available = min(available, limit - min(limit, usage))
    atomic_store(&memory.total, most, RELAXED)
    free[0] = min(available, most)
    total[0] = most
    return OK


# The number behind `key` at the start of a line, or at the start of the file for an empty key. NO_LIMIT if
# there is none: a control group without a limit says "max".
cdef uint64_t number_after(const char* key, const char* path, char* text) noexcept nogil:
    cdef int file = open(path, O_RDONLY)
    cdef ssize_t length
    cdef const char* place = text
    cdef char* end
    cdef uint64_t number
    if file < 0:
        return NO_LIMIT
    length = read(file, text, FILE_CAPACITY - 1)
    close(file)
    if length <= 0:
        return NO_LIMIT
    text[length] = 0
    while strncmp(place, key, strlen(key)) != 0:
        place = strstr(place, b"\n")
        if place == NULL:
            return NO_LIMIT
        place += 1
    place += strlen(key)
    number = strtoull(place, &end, 10)
    return NO_LIMIT if end == place else number


cdef void* map_pages(bytes_t size) noexcept nogil:
    """A private mapping; a large one where huge pages fit, which the system is asked for if it has any."""
    cdef void* place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef bytes_t before
    if size < HUGE_FROM or place == MAP_FAILED:
        return place
    if <address_t> place % HUGE_PAGE != 0:
        # Systems that do not align by themselves: what is mapped too much is cut off on both sides.
        munmap(place, size)
        place = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if place == MAP_FAILED:
            return place
        before = (HUGE_PAGE - <address_t> place % HUGE_PAGE) % HUGE_PAGE
        if before != 0:
            munmap(place, before)
        munmap(<char*> place + before + size, HUGE_PAGE - before)
        place = <char*> place + before
    madvise(place, size, MADV_HUGEPAGE)
    return place


cdef status_t segment_allocate(HostMemory* memory, bytes_t size, address_t* address) noexcept nogil:
    cdef status_t status = memory_take(memory, size)
    cdef void* place
    if status != OK:
        return status
    pthread_mutex_lock(&memory.mutex)
    if not map_reserve(&memory.segments, memory.leaving + 1):
        status = refuse(OUT_OF_MEMORY, b"no memory to remember a segment")
    else:
        place = map_pages(size)
        if place == MAP_FAILED:
            status = refuse_system(b"mmap", errno.errno)
        else:
            map_put(&memory.segments, <address_t> place, <void*> size)
            address[0] = <address_t> place
    pthread_mutex_unlock(&memory.mutex)
    if status != OK:
        memory_return(memory, size)
    return status


cdef status_t segment_free(HostMemory* memory, address_t address, bytes_t size) noexcept nogil:
    cdef bytes_t known
    cdef status_t status = OK
    pthread_mutex_lock(&memory.mutex)
    known = <bytes_t> map_get(&memory.segments, address) if address != 0 else 0
    if known == 0 or (size != 0 and size != known):
        pthread_mutex_unlock(&memory.mutex)
        return refuse_number(INVALID, b"%#llx is not a segment of this size, or no longer", address)
    map_pop(&memory.segments, address)
    memory.leaving += 1
    pthread_mutex_unlock(&memory.mutex)
    # Neighbours are one mapping to the system; taking one out of the middle makes two, and can be one too many.
    if munmap(<void*> address, known) != 0:
        refuse_system(b"munmap (see vm.max_map_count)", errno.errno)
        status = DEVICE_ERROR
    pthread_mutex_lock(&memory.mutex)
    memory.leaving -= 1
    if status != OK:
        map_put(&memory.segments, address, <void*> known)
    pthread_mutex_unlock(&memory.mutex)
    if status == OK:
        memory_return(memory, known)
    return status
