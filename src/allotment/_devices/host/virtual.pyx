from libc cimport errno
from libc.stddef cimport size_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove, memset
from posix.fcntl cimport F_DUPFD_CLOEXEC, fcntl
from posix.mman cimport (
    MADV_DONTFORK, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ,
    PROT_WRITE, madvise, mmap, mprotect, munmap)
from posix.unistd cimport close, ftruncate

from allotment._core.contract.table cimport (
    DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY, SHARE_DESCRIPTOR, UNSUPPORTED, share_t)
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.forks cimport SHORT_MUTEX, guard_forks, unguard_forks
from allotment._devices.host.memory cimport is_sized_file, memory_return, memory_take, open_sized_file
from allotment._devices.shared.handles cimport (
    handle_of, handles_close, handles_new, handles_open, handles_recycle, handles_retire, record_at, record_of)
from allotment._devices.shared.posix cimport (
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, fallocate, open_memory_file, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock)
from allotment._devices.shared.refusal cimport refuse, refuse_number, refuse_system

# The growth step of the arena. Holes cost nothing, and the places of one size stay together.
cdef uint64_t GROWTH = <uint64_t> 1 << 30


cdef void arena_open(Arena* arena, HostMemory* memory) noexcept nogil:
    memset(arena, 0, sizeof(Arena))
    pthread_mutex_init(&arena.mutex, NULL)
    arena.memory = memory
    arena.file = -1
    handles_open(&arena.chunks, sizeof(Chunk))
    handles_open(&arena.views, sizeof(View))
    arena.fork_guard.start_anew = leave_parent
    arena.fork_guard.owner = arena
    guard_forks(&arena.fork_guard, SHORT_MUTEX, &arena.mutex)


cdef void arena_close(Arena* arena) noexcept nogil:
    unguard_forks(&arena.fork_guard)
    if arena.file >= 0:
        close(arena.file)
    for at in range(1, arena.chunks.count + 1):
        close_file(<Chunk*> record_at(&arena.chunks, at))
    for at in range(arena.free_list_count):
        free(arena.free_lists[at].places)
    free(arena.free_lists)
    for at in range(arena.range_count):
        munmap(arena.ranges[at].view_at, table_size(arena, arena.ranges[at].size))
    free(arena.ranges)
    handles_close(&arena.chunks)
    handles_close(&arena.views)
    pthread_mutex_destroy(&arena.mutex)


# Ranges

cdef status_t range_reserve(Arena* arena, bytes_t size, address_t* address) noexcept nogil:
    cdef void* table = reserve(NULL, table_size(arena, size), PROT_READ | PROT_WRITE)
    cdef void* base
    cdef status_t status = OK
    if table == MAP_FAILED:
        return refuse_system(b"reserving addresses", errno.errno)
    base = reserve(NULL, size, PROT_NONE)
    if base == MAP_FAILED:
        status = refuse_system(b"reserving addresses", errno.errno)
        munmap(table, table_size(arena, size))
        return status
    pthread_mutex_lock(&arena.mutex)
    status = insert_range(arena, <address_t> base, size, <uint32_t*> table)
    pthread_mutex_unlock(&arena.mutex)
    if status != OK:
        munmap(table, table_size(arena, size))
        munmap(base, size)
        return status
    address[0] = <address_t> base
    return OK


cdef status_t insert_range(Arena* arena, address_t base, bytes_t size, uint32_t* table) noexcept nogil:
    if not make_room(<void**> &arena.ranges, &arena.range_capacity, arena.range_count, sizeof(Range)):
        return refuse(OUT_OF_MEMORY, b"no memory to record a range")
    cdef size_t at = first_range_after(arena, base)
    memmove(&arena.ranges[at + 1], &arena.ranges[at], (arena.range_count - at) * sizeof(Range))
    arena.ranges[at] = Range(base, size, 0, table)
    arena.range_count += 1
    return OK


cdef status_t range_release(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    cdef Range found
    cdef size_t at
    pthread_mutex_lock(&arena.mutex)
    at = first_range_after(arena, address)
    if at == 0 or arena.ranges[at - 1].base != address or arena.ranges[at - 1].size != size:
        pthread_mutex_unlock(&arena.mutex)
        return refuse_number(INVALID, b"%#llx is not a reserved range of this size", address)
    found = arena.ranges[at - 1]
    if found.views != 0:
        pthread_mutex_unlock(&arena.mutex)
        return refuse_number(INVALID, b"the range still has %llu chunks mapped in it", found.views)
    if munmap(<void*> address, size) != 0:
        pthread_mutex_unlock(&arena.mutex)
        refuse_system(b"munmap (see vm.max_map_count)", errno.errno)
        return DEVICE_ERROR
    arena.range_count -= 1
    memmove(&arena.ranges[at - 1], &arena.ranges[at], (arena.range_count - (at - 1)) * sizeof(Range))
    pthread_mutex_unlock(&arena.mutex)
    munmap(found.view_at, table_size(arena, size))
    return OK


# Returns the range that contains all of [address, address + size), NULL if none does.
cdef Range* range_around(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    cdef size_t at = first_range_after(arena, address)
    if at == 0:
        return NULL
    cdef Range* found = &arena.ranges[at - 1]
    cdef bytes_t inside = address - found.base
    if inside > found.size or size > found.size - inside:
        return NULL
    return found


cdef size_t first_range_after(Arena* arena, address_t address) noexcept nogil:
    cdef size_t low = 0, high = arena.range_count, middle
    while low < high:
        middle = (low + high) // 2
        if arena.ranges[middle].base <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline bytes_t table_size(Arena* arena, bytes_t size) noexcept nogil:
    return (size + arena.memory.page - 1) // arena.memory.page * sizeof(uint32_t)


cdef inline void* reserve(void* place, bytes_t size, int access) noexcept nogil:
    cdef int fixed = MAP_FIXED if place != NULL else 0
    return mmap(place, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0)


# Chunks

cdef status_t chunk_create(Arena* arena, bytes_t size, chunk_t* chunk) noexcept nogil:
    cdef Chunk* made
    cdef uint64_t offset = 0
    cdef int file = -1
    if size % arena.memory.page != 0:
        return refuse_number(INVALID, b"a chunk of %llu bytes is not a whole number of pages", size)
    cdef status_t status = memory_take(arena.memory, size)
    if status != OK:
        return status
    pthread_mutex_lock(&arena.mutex)
    made = <Chunk*> handles_new(&arena.chunks)
    if made == NULL:
        status = refuse(OUT_OF_MEMORY, b"no memory to record a chunk")
    else:
        made.file = -1
        if arena.memory.shareable:
            file = open_sized_file(size)
            if file < 0:
                status = refuse_system(b"a memory file for a chunk (see ulimit -n)", errno.errno)
        else:
            status = take_place(arena, size, &offset)
        if status != OK:
            handles_retire(&made.handle)
            handles_recycle(&arena.chunks, &made.handle)
    if status == OK:
        chunk_begin(made, size, offset, file, False)
        chunk[0] = handle_of(&made.handle)
    pthread_mutex_unlock(&arena.mutex)
    if status != OK:
        memory_return(arena.memory, size)
    return status


cdef inline void chunk_begin(Chunk* chunk, bytes_t size, uint64_t offset, int file, bint imported) noexcept nogil:
    chunk.offset = offset
    chunk.file = file
    chunk.imported = imported
    chunk.size = size
    chunk.views = 0
    chunk.released = False
    chunk.inherited = False


cdef status_t chunk_release(Arena* arena, chunk_t handle, bytes_t size) noexcept nogil:
    cdef Chunk* chunk
    cdef status_t status = OK
    pthread_mutex_lock(&arena.mutex)
    chunk = <Chunk*> record_of(&arena.chunks, handle)
    if chunk == NULL or chunk.size != size:
        status = refuse_number(INVALID, b"%#llx is not a chunk of this size", handle)
    else:
        handles_retire(&chunk.handle)
        chunk.released = True
        if chunk.imported:
            close_file(chunk)
        give_up_if_unused(arena, chunk)
    pthread_mutex_unlock(&arena.mutex)
    return status


cdef void give_up_if_unused(Arena* arena, Chunk* chunk) noexcept nogil:
    if not chunk.released or chunk.views != 0:
        return
    if chunk.imported:
        close_file(chunk)
        handles_recycle(&arena.chunks, &chunk.handle)
        return
    if chunk.file >= 0:
        close_file(chunk)
    elif not chunk.inherited:
        # If punching a hole fails, the old bytes stay. Only a new chunk at this place would see them, and new memory
        # need not be zero. The system gets the memory back when the file is closed.
        fallocate(arena.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, chunk.offset, chunk.size)
        put_place(arena, chunk.size, chunk.offset)
    memory_return(arena.memory, chunk.size)
    handles_recycle(&arena.chunks, &chunk.handle)


cdef inline void close_file(Chunk* chunk) noexcept nogil:
    if chunk.file >= 0:
        close(chunk.file)
    chunk.file = -1


# Sharing

cdef status_t chunk_export(Arena* arena, chunk_t handle, share_t kind, unsigned char* written, size_t capacity,
                           size_t* length) noexcept nogil:
    cdef Chunk* chunk
    cdef status_t status = OK
    if kind != SHARE_DESCRIPTOR:
        return refuse(UNSUPPORTED, b"a chunk of host memory is shared by descriptor")
    pthread_mutex_lock(&arena.mutex)
    chunk = <Chunk*> record_of(&arena.chunks, handle)
    if chunk == NULL or chunk.file < 0 or capacity < sizeof(int):
        status = refuse_number(INVALID, b"%#llx is not a chunk of this device with a file of its own", handle)
    else:
        memcpy(written, &chunk.file, sizeof(int))
        length[0] = sizeof(int)
    pthread_mutex_unlock(&arena.mutex)
    return status


cdef status_t chunk_import(Arena* arena, share_t kind, const unsigned char* written, size_t length, bytes_t size,
                           chunk_t* handle) noexcept nogil:
    cdef Chunk* made = NULL
    cdef bytes_t found = 0
    cdef int descriptor
    if kind != SHARE_DESCRIPTOR:
        return refuse(UNSUPPORTED, b"a chunk of host memory is shared by descriptor")
    if length != sizeof(int):
        return refuse(INVALID, b"the handle of a chunk of host memory is a descriptor, 4 bytes")
    memcpy(&descriptor, written, sizeof(int))
    if not is_sized_file(descriptor, &found) or found != size:
        return refuse_number(INVALID, b"descriptor %llu is not that of a shared chunk of this size", descriptor)
    descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 3)
    if descriptor < 0:
        return refuse_system(b"a descriptor for a chunk (see ulimit -n)", errno.errno)
    pthread_mutex_lock(&arena.mutex)
    made = <Chunk*> handles_new(&arena.chunks)
    if made != NULL:
        chunk_begin(made, size, 0, descriptor, True)
        handle[0] = handle_of(&made.handle)
    pthread_mutex_unlock(&arena.mutex)
    if made == NULL:
        close(descriptor)
        return refuse(OUT_OF_MEMORY, b"no memory to record a chunk")
    return OK


# Places in the file

cdef status_t take_place(Arena* arena, bytes_t size, uint64_t* offset) noexcept nogil:
    cdef FreeList* free_list = free_list_for(arena, size)
    cdef status_t status
    if free_list == NULL:
        return refuse(OUT_OF_MEMORY, b"no memory to record a chunk")
    if free_list.count != 0:
        offset[0] = lowest_place(free_list)
        return OK
    if free_list.next == free_list.end:
        status = grow(arena, free_list)
        if status != OK:
            return status
    offset[0] = free_list.next
    free_list.next += size
    return OK


cdef status_t grow(Arena* arena, FreeList* free_list) noexcept nogil:
    cdef uint64_t growth = max(GROWTH // free_list.size, <uint64_t> 1) * free_list.size
    if arena.file < 0:
        arena.file = open_memory_file(b"allotment")
        if arena.file < 0:
            return refuse_system(b"memfd_create", errno.errno)
    if ftruncate(arena.file, arena.end + growth) != 0:
        return refuse_system(b"growing the memory file", errno.errno)
    free_list.next = arena.end
    free_list.end = arena.end + growth
    arena.end += growth
    return OK


cdef FreeList* free_list_for(Arena* arena, bytes_t size) noexcept nogil:
    cdef size_t low = 0, high = arena.free_list_count, middle
    while low < high:
        middle = (low + high) // 2
        if arena.free_lists[middle].size < size:
            low = middle + 1
        else:
            high = middle
    if low < arena.free_list_count and arena.free_lists[low].size == size:
        return &arena.free_lists[low]
    if not make_room(<void**> &arena.free_lists, &arena.free_list_capacity, arena.free_list_count, sizeof(FreeList)):
        return NULL
    memmove(&arena.free_lists[low + 1], &arena.free_lists[low], (arena.free_list_count - low) * sizeof(FreeList))
    arena.free_list_count += 1
    arena.free_lists[low] = FreeList(size, 0, 0, NULL, 0, 0)
    return &arena.free_lists[low]


# If host memory is short, the place is lost; offsets are plentiful.
cdef void put_place(Arena* arena, bytes_t size, uint64_t offset) noexcept nogil:
    cdef FreeList* free_list = free_list_for(arena, size)
    if free_list == NULL or not make_room(
            <void**> &free_list.places, &free_list.capacity, free_list.count, sizeof(uint64_t)):
        return
    cdef size_t at = free_list.count, parent
    free_list.count += 1
    while at > 0:
        parent = (at - 1) // 2
        if free_list.places[parent] <= offset:
            break
        free_list.places[at] = free_list.places[parent]
        at = parent
    free_list.places[at] = offset


cdef uint64_t lowest_place(FreeList* free_list) noexcept nogil:
    cdef uint64_t lowest = free_list.places[0]
    cdef uint64_t moved
    cdef size_t at = 0, child
    free_list.count -= 1
    moved = free_list.places[free_list.count]
    while True:
        child = 2 * at + 1
        if child >= free_list.count:
            break
        if child + 1 < free_list.count and free_list.places[child + 1] < free_list.places[child]:
            child += 1
        if moved <= free_list.places[child]:
            break
        free_list.places[at] = free_list.places[child]
        at = child
    free_list.places[at] = moved
    return lowest


# Views

cdef inline int file_of(const Arena* arena, const Chunk* chunk) noexcept nogil:
    return chunk.file if chunk.file >= 0 else arena.file


cdef status_t map_chunk(Arena* arena, address_t address, bytes_t size, chunk_t handle) noexcept nogil:
    cdef status_t status
    pthread_mutex_lock(&arena.mutex)
    status = map_locked(arena, address, size, handle)
    pthread_mutex_unlock(&arena.mutex)
    return status


cdef status_t map_locked(Arena* arena, address_t address, bytes_t size, chunk_t handle) noexcept nogil:
    cdef Chunk* chunk = <Chunk*> record_of(&arena.chunks, handle)
    cdef Range* around = range_around(arena, address, size)
    cdef View* view
    cdef void* place
    cdef status_t status
    if chunk == NULL:
        return refuse_number(INVALID, b"%#llx is not a chunk", handle)
    if chunk.inherited:
        return refuse_number(INVALID, b"chunk %#llx belongs to the process that forked this one", handle)
    if chunk.size != size:
        return refuse_number(INVALID, b"only all of the chunk's %llu bytes can be mapped", chunk.size)
    if around == NULL or (address - around.base) % arena.memory.page != 0:
        return refuse_number(INVALID, b"%#llx is not a place for this chunk in a reserved range", address)
    if not is_clear(arena, around, address, size):
        return refuse_number(INVALID, b"something is mapped in the range at %#llx already", address)
    view = <View*> handles_new(&arena.views)
    if view == NULL:
        return refuse(OUT_OF_MEMORY, b"no memory to record a mapping")
    place = mmap(<void*> address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, file_of(arena, chunk), chunk.offset)
    if place == MAP_FAILED:
        status = refuse_system(b"mapping a chunk (see vm.max_map_count)", errno.errno)
        reserve(<void*> address, size, PROT_NONE)
        forget_view(arena, view)
        return status
    if chunk.imported:
        madvise(place, size, MADV_DONTFORK)
    view.address = address
    view.chunk = chunk
    view.accessible = False
    view.mapped = True
    chunk.views += 1
    around.views += 1
    mark_pages(arena, around, view, view.handle.index)
    return OK


cdef status_t unmap(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    cdef Range* around
    cdef View* view
    cdef Chunk* chunk
    cdef address_t end = address + size
    cdef status_t status = OK
    pthread_mutex_lock(&arena.mutex)
    around = range_tiled_by_views(arena, address, size)
    if around == NULL:
        status = refuse_number(INVALID, b"the memory at %#llx is not a sequence of whole mappings", address)
    elif reserve(<void*> address, size, PROT_NONE) == MAP_FAILED:
        status = refuse_system(b"unmapping", errno.errno)
    else:
        while address < end:
            view = view_at(arena, around, address)
            chunk = view.chunk
            address += chunk.size
            mark_pages(arena, around, view, 0)
            forget_view(arena, view)
            around.views -= 1
            chunk.views -= 1
            give_up_if_unused(arena, chunk)
    pthread_mutex_unlock(&arena.mutex)
    return status


cdef status_t set_access(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    cdef Range* around
    cdef View* view
    cdef address_t end = address + size
    cdef status_t status = OK
    pthread_mutex_lock(&arena.mutex)
    around = range_tiled_by_views(arena, address, size)
    if around == NULL:
        status = refuse_number(INVALID, b"the memory at %#llx is not a sequence of whole mappings", address)
    elif mprotect(<void*> address, size, PROT_READ | PROT_WRITE) != 0:
        status = refuse_system(b"giving access (see vm.max_map_count)", errno.errno)
    else:
        while address < end:
            view = view_at(arena, around, address)
            view.accessible = True
            address += view.chunk.size
    pthread_mutex_unlock(&arena.mutex)
    return status


# Returns the range around [address, address + size) if views cover it without a gap, from the first byte of one to the
# last byte of another; else NULL.
cdef Range* range_tiled_by_views(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    cdef Range* around = range_around(arena, address, size)
    cdef address_t end = address + size
    cdef View* view
    if around == NULL or size == 0:
        return NULL
    while address < end:
        view = view_at(arena, around, address)
        if view == NULL or view.address != address:
            return NULL
        address += view.chunk.size
    return around if address == end else NULL


cdef inline View* view_at(Arena* arena, Range* around, address_t address) noexcept nogil:
    cdef uint32_t index = around.view_at[(address - around.base) // arena.memory.page]
    return <View*> record_at(&arena.views, index) if index != 0 else NULL


cdef bint is_clear(Arena* arena, Range* around, address_t address, bytes_t size) noexcept nogil:
    cdef uint32_t* pages = &around.view_at[(address - around.base) // arena.memory.page]
    for page in range(size // arena.memory.page):
        if pages[page] != 0:
            return False
    return True


cdef void mark_pages(Arena* arena, Range* around, View* view, uint32_t index) noexcept nogil:
    cdef uint32_t* pages = &around.view_at[(view.address - around.base) // arena.memory.page]
    for page in range(view.chunk.size // arena.memory.page):
        pages[page] = index


cdef void forget_view(Arena* arena, View* view) noexcept nogil:
    view.mapped = False
    handles_retire(&view.handle)
    handles_recycle(&arena.views, &view.handle)


# Fork

cdef void leave_parent(void* owner) noexcept nogil:
    cdef Arena* arena = <Arena*> owner
    cdef Chunk* chunk
    cdef View* view
    cdef size_t index
    for index in range(1, arena.views.count + 1):
        view = <View*> record_at(&arena.views, index)
        if view.mapped and not view.chunk.inherited:
            make_private(arena, view)
    for index in range(1, arena.chunks.count + 1):
        chunk = <Chunk*> record_at(&arena.chunks, index)
        chunk.inherited = True
        close_file(chunk)
    for index in range(arena.free_list_count):
        arena.free_lists[index].count = 0
        arena.free_lists[index].next = arena.free_lists[index].end = 0
    if arena.file >= 0:
        close(arena.file)
    arena.file = -1
    arena.end = 0


cdef void make_private(Arena* arena, View* view) noexcept nogil:
    cdef int access = PROT_READ | PROT_WRITE if view.accessible else PROT_NONE
    cdef void* place = MAP_FAILED
    if not view.chunk.imported:
        place = mmap(<void*> view.address, view.chunk.size, access, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                     file_of(arena, view.chunk), view.chunk.offset)
    if place == MAP_FAILED:
        # The child must fail when it touches this, not write into its parent's memory.
        reserve(<void*> view.address, view.chunk.size, PROT_NONE)
