"""framework_interface.h for Cython; that header explains each declaration."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

ctypedef void (*visit_address_t)(void* self, uint64_t address) noexcept nogil

cdef extern from "framework_interface.h":
    enum:
        ALLOTMENT_INTERFACE_VERSION
        ALLOTMENT_DEVICES_MOST
        ALLOTMENT_FOREIGN_CONTEXT
        ALLOTMENT_FAILED
        ALLOTMENT_OUT_OF_MEMORY
        ALLOTMENT_REJECTED
    ctypedef struct allotment_failure:
        int kind
        char* text
        uint64_t rounded, segment, most, device_free, allocated, reserved
    ctypedef struct allotment_stat:
        int64_t current, peak, allocated, freed
    ctypedef struct allotment_statistics_visitor:
        void* self
        void (*number)(void* self, const char* name, int64_t value) noexcept nogil
        void (*stat)(void* self, const char* name, const allotment_stat* value) noexcept nogil
        void (*stats)(void* self, const char* name, const allotment_stat* three) noexcept nogil
        void (*pool)(void* self, uint64_t first, uint64_t second, const allotment_stat* reserved) noexcept nogil
    ctypedef struct allotment_record:
        int action, device
        uint64_t address, size, stream, pool_first, pool_second
        int64_t time_us
        uint32_t context
        const char* compile_context
        const char* user_metadata
        const char* internal_metadata
    ctypedef struct allotment_segment:
        uint64_t address, total, allocated, active, requested, stream, pool_first, pool_second
        uint32_t context, number
        int is_small, is_expandable
    ctypedef struct allotment_block:
        uint64_t address, size, requested
        int allocated, active
        uint32_t context
    ctypedef struct allotment_snapshot_visitor:
        void* self
        void (*record)(void* self, const allotment_record* record) noexcept nogil
        void (*segment)(void* self, const allotment_segment* segment) noexcept nogil
        void (*block)(void* self, const allotment_block* block) noexcept nogil
        void (*annotation)(void* self, int device, int64_t time_us) noexcept nogil
        void (*pair)(void* self, const char* key, const char* value) noexcept nogil
        void (*settings)(void* self, const char* text) noexcept nogil
    ctypedef struct allotment_upcalls:
        size_t size
        uint32_t (*gather)() noexcept nogil
        void (*frames)(uint32_t context, void (*visit)(void*, const char*, const char*, int64_t) noexcept,
                       void* self) noexcept nogil
        void (*record)(const allotment_record* record) noexcept nogil
        int (*free_memory)() noexcept nogil
        uint64_t (*current_stream)(int device) noexcept nogil
    ctypedef struct allotment_raw_allocator:
        void* self
        uint64_t (*allocate)(void* self, size_t size, uint64_t stream) noexcept nogil
        void (*free)(void* self, uint64_t address, size_t size, uint64_t stream) noexcept nogil
        void (*drop)(void* self) noexcept nogil
    struct allotment_entry_points:
        pass
    ctypedef struct allotment_figure:
        const int64_t* ceiling
        const int64_t* room
    ctypedef struct allotment_bound_device:
        const allotment_entry_points* entry_points
        allotment_figure allocated, reserved
    ctypedef struct allotment_interface:
        size_t size
        uint32_t version
        const allotment_failure* (*failure)() noexcept nogil
        const allotment_bound_device* devices
        int (*bind)(int) noexcept nogil
        void (*take_failure)(int) noexcept nogil
        int (*was_unknown_address)() noexcept nogil
        void (*set_upcalls)(const allotment_upcalls*) noexcept nogil
        size_t (*block_size)(int, void*) noexcept nogil
        uint32_t (*block_context)(int, const void*) noexcept nogil
        int (*largest_block)(int, size_t*) noexcept nogil
        int (*empty_cache)(int, uint64_t, uint64_t) noexcept nogil
        int (*create_or_incref_pool)(int, uint64_t, uint64_t, const allotment_raw_allocator*) noexcept nogil
        int (*pool_use_count)(int, uint64_t, uint64_t) noexcept nogil
        int (*set_use_on_oom)(int, uint64_t, uint64_t, int) noexcept nogil
        int (*set_no_split)(int, uint64_t, uint64_t) noexcept nogil
        int (*live_addresses)(int, uint64_t, uint64_t, visit_address_t, void*) noexcept nogil
        int (*is_recording)(int) noexcept nogil
        int (*contexts_in_use)(void (*)(void*, uint32_t) noexcept nogil, void*) noexcept nogil
        int (*relay_records)(int) noexcept nogil
        int (*statistics)(int, const allotment_statistics_visitor*) noexcept nogil
        int (*reset_statistics)(int, int) noexcept nogil
        double (*memory_fraction)(int) noexcept nogil
        int (*set_memory_fraction)(int, double) noexcept nogil
        int (*enable)(int) noexcept nogil
        int (*is_enabled)() noexcept nogil
        int (*configure)(const char*) noexcept nogil
        int (*record_history)(int, int, size_t, int, const char* const*, size_t, int) noexcept nogil
        int (*annotate)(int, const char* const*, const char* const*, size_t) noexcept nogil
        int (*annotate_block)(int, const void*, const char*) noexcept nogil
        void (*push_compile_context)(const char*) noexcept nogil
        void (*pop_compile_context)() noexcept nogil
        void (*set_user_metadata)(const char*) noexcept nogil
        const char* (*user_metadata)() noexcept nogil
        int (*snapshot)(int, uint64_t, uint64_t, int, const allotment_snapshot_visitor*) noexcept nogil
        void* (*checkpoint)(int, uint64_t, uint64_t) noexcept nogil
        int (*restore)(int, void*, visit_address_t, visit_address_t, void*) noexcept nogil
        void (*drop_state)(void*) noexcept nogil
        int (*share)(int, void*, uint64_t*, void (*)(void*, const char*, size_t) noexcept nogil, void*) noexcept nogil
        void* (*open_shared)(int, const char*, size_t, uint64_t*) noexcept nogil
        void (*close_shared)(void*) noexcept nogil
        int (*enable_peer)(int, int) noexcept nogil
        int (*expandable_sizes)(int, void (*)(void*, uint64_t, int, uint64_t) noexcept nogil, void*) noexcept nogil
        void* (*allocate_at)(int, size_t, void*, uint64_t) noexcept nogil
        int (*set_reserve_class)(int, uint64_t, const char*, size_t) noexcept nogil
