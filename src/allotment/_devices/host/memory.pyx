import os

from libc cimport errno
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free as free_memory, strtoull
from libc.string cimport memcpy, memset, strdup, strlen, strncmp, strstr
from posix.fcntl cimport O_RDONLY, fcntl, open
from posix.mman cimport (
    MADV_DONTFORK, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ,
    PROT_WRITE, madvise, mmap, munmap)
from posix.types cimport off_t
from posix.unistd cimport _SC_PAGESIZE, SEEK_END, close, ftruncate, lseek, read, sysconf

from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY
from allotment._core.tools.forks cimport SHORT_MUTEX, guard_forks, unguard_forks
from allotment._core.tools.pointer_map cimport (
    MapSlot, PointerMap, map_clear, map_get, map_init, map_pop, map_put, map_reserve)
from allotment._devices.shared.posix cimport (
    ACQ_REL, F_ADD_SEALS, F_GET_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, RELAXED, atomic_add, atomic_load,
    atomic_store, atomic_subtract, open_sealable_file, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock)
from allotment._devices.shared.refusal cimport refuse, refuse_number, refuse_system

cdef extern from "<sys/mman.h>" nogil:
    int MADV_HUGEPAGE

cdef enum:
    HUGE_PAGE = 2 << 20
    HUGE_FROM = 4 << 20             # a huge page is allocated whole, and a smaller segment may use little of it
    FILE_CAPACITY = 16384           # /proc/meminfo and memory.stat are well below 8 KiB

cdef uint64_t NO_LIMIT = <uint64_t> 0xFFFF_FFFF_FFFF_FFFF


cdef int memory_open(HostMemory* memory, object groups, bint shareable) except -1:
    cdef bytes_t unused
    memset(memory, 0, sizeof(HostMemory))
    memory.page = sysconf(_SC_PAGESIZE)
    memory.shareable = shareable
    try:
        for group in groups[:MAX_GROUPS]:
            add_group(memory, group)
        if memory_info(memory, &unused, &memory.total) != OK:
            raise OSError("/proc/meminfo does not report how much memory there is")
        if not (map_init(&memory.segments) and map_init(&memory.files) and map_init(&memory.imported)):
            raise MemoryError("the host has no memory for the records of the host device")
    except BaseException:
        forget_groups(memory)
        raise
    pthread_mutex_init(&memory.mutex, NULL)
    memory.fork_guard.start_anew = leave_parent
    memory.fork_guard.owner = memory
    guard_forks(&memory.fork_guard, SHORT_MUTEX, &memory.mutex)
    return 0


cdef void memory_close(HostMemory* memory) noexcept nogil:
    unguard_forks(&memory.fork_guard)
    pthread_mutex_destroy(&memory.mutex)
    # Segments stay, because code may still hold addresses in them. Their files are not needed for that.
    for at in range(memory.files.mask + 1):
        if memory.files.slots[at].key != 0:
            close(<int> <size_t> memory.files.slots[at].value - 1)
    map_clear(&memory.segments)
    map_clear(&memory.files)
    map_clear(&memory.imported)
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


# Returns the number after `key` at the start of a line, or at the start of the file for an empty key; NO_LIMIT if there
# is none: a control group without a limit says "max".
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
    """Create a private mapping. A large one is aligned for huge pages, and the system is asked to use them."""
    cdef void* place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef bytes_t before
    if size < HUGE_FROM or place == MAP_FAILED:
        return place
    if <address_t> place % HUGE_PAGE != 0:
        # For systems that do not align by themselves: map more and unmap the excess on both sides.
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
    cdef void* place = MAP_FAILED
    cdef int file = -1
    if status != OK:
        return status
    pthread_mutex_lock(&memory.mutex)
    if not (map_reserve(&memory.segments, memory.leaving + 1) and map_reserve(&memory.files, memory.leaving + 1)):
        status = refuse(OUT_OF_MEMORY, b"no memory to record a segment")
    elif memory.shareable:
        file = open_sized_file(size)
        if file < 0:
            status = refuse_system(b"a memory file for a segment (see ulimit -n)", errno.errno)
    if status == OK:
        place = map_pages(size) if file < 0 else mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        if place == MAP_FAILED:
            status = refuse_system(b"mmap", errno.errno)
            if file >= 0:
                close(file)
        else:
            map_put(&memory.segments, <address_t> place, <void*> size)
            if file >= 0:
                map_put(&memory.files, <address_t> place, <void*> <size_t> (file + 1))
            address[0] = <address_t> place
    pthread_mutex_unlock(&memory.mutex)
    if status != OK:
        memory_return(memory, size)
    return status


cdef status_t segment_free(HostMemory* memory, address_t address, bytes_t size) noexcept nogil:
    cdef bytes_t known
    cdef size_t file
    cdef status_t status = OK
    pthread_mutex_lock(&memory.mutex)
    known = <bytes_t> map_get(&memory.segments, address) if address != 0 else 0
    if known == 0 or (size != 0 and size != known):
        pthread_mutex_unlock(&memory.mutex)
        return refuse_number(INVALID, b"%#llx is not a segment of this size, or no longer", address)
    map_pop(&memory.segments, address)
    file = <size_t> map_pop(&memory.files, address)
    memory.leaving += 1
    pthread_mutex_unlock(&memory.mutex)
    # Neighbours are one mapping to the system; unmapping the middle makes two, which can exceed the limit.
    if munmap(<void*> address, known) != 0:
        refuse_system(b"munmap (see vm.max_map_count)", errno.errno)
        status = DEVICE_ERROR
    pthread_mutex_lock(&memory.mutex)
    memory.leaving -= 1
    if status != OK:
        map_put(&memory.segments, address, <void*> known)
        if file != 0:
            map_put(&memory.files, address, <void*> file)
    pthread_mutex_unlock(&memory.mutex)
    if status == OK:
        if file != 0:
            close(<int> file - 1)
        memory_return(memory, known)
    return status


# Sharing

cdef int open_sized_file(bytes_t size) noexcept nogil:
    cdef int file = open_sealable_file(b"allotment")
    cdef int error
    if file < 0:
        return -1
    if ftruncate(file, size) == 0 and fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0:
        return file
    error = errno.errno
    close(file)
    errno.errno = error
    return -1


cdef bint is_sized_file(int descriptor, bytes_t* size) noexcept nogil:
    cdef int seals = fcntl(descriptor, F_GET_SEALS)
    cdef off_t end = lseek(descriptor, 0, SEEK_END)
    if seals < 0 or end <= 0 or not seals & F_SEAL_SHRINK:
        return False
    size[0] = <bytes_t> end
    return True


cdef status_t segment_export(HostMemory* memory, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil:
    cdef size_t file
    cdef int descriptor
    pthread_mutex_lock(&memory.mutex)
    file = <size_t> map_get(&memory.files, base) if base != 0 else 0
    pthread_mutex_unlock(&memory.mutex)
    if file == 0:
        return refuse_number(INVALID, b"%#llx is not a segment of this device with a file of its own", base)
    if capacity < sizeof(int):
        return refuse(INVALID, b"a descriptor takes 4 bytes")
    descriptor = <int> file - 1
    memcpy(handle, &descriptor, sizeof(int))
    length[0] = sizeof(int)
    return OK


cdef status_t segment_import(HostMemory* memory, const unsigned char* handle, size_t length,
                             address_t* base) noexcept nogil:
    cdef int descriptor
    cdef bytes_t size = 0
    cdef void* place
    cdef status_t status = OK
    if length != sizeof(int):
        return refuse(INVALID, b"the handle of a segment of host memory is a descriptor, 4 bytes")
    memcpy(&descriptor, handle, sizeof(int))
    if not is_sized_file(descriptor, &size):
        return refuse_number(INVALID, b"descriptor %llu is not that of a shared segment", descriptor)
    pthread_mutex_lock(&memory.mutex)
    if not map_reserve(&memory.imported):
        status = refuse(OUT_OF_MEMORY, b"no memory to record a segment")
    else:
        place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        if place == MAP_FAILED:
            status = refuse_system(b"mmap", errno.errno)
        else:
            madvise(place, size, MADV_DONTFORK)
            map_put(&memory.imported, <address_t> place, <void*> size)
            base[0] = <address_t> place
    pthread_mutex_unlock(&memory.mutex)
    return status


cdef status_t segment_close(HostMemory* memory, address_t base) noexcept nogil:
    cdef bytes_t size
    pthread_mutex_lock(&memory.mutex)
    size = <bytes_t> map_pop(&memory.imported, base) if base != 0 else 0
    if size != 0:
        munmap(<void*> base, size)
    pthread_mutex_unlock(&memory.mutex)
    return OK if size != 0 else refuse_number(INVALID, b"%#llx is not an imported segment, or no longer", base)


# In a child of fork: the segments become the child's own, and other processes' segments are gone.
cdef void leave_parent(void* owner) noexcept nogil:
    cdef HostMemory* memory = <HostMemory*> owner
    cdef address_t base
    cdef bytes_t size
    cdef int file
    cdef void* place
    for at in range(memory.files.mask + 1):
        base = memory.files.slots[at].key
        if base == 0:
            continue
        file = <int> <size_t> memory.files.slots[at].value - 1
        size = <bytes_t> map_get(&memory.segments, base)
        place = mmap(<void*> base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0)
        if place == MAP_FAILED:
            # The child must fail when it touches this, not write into its parent's memory.
            mmap(<void*> base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0)
        close(file)
    empty(&memory.files)
    empty(&memory.imported)


cdef void empty(PointerMap* map) noexcept nogil:
    memset(map.slots, 0, (map.mask + 1) * sizeof(MapSlot))
    map.count = 0
