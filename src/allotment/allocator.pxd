from allotment.core.backend cimport Device
from allotment.core.model cimport Engine, Failure, PoolOwner
from allotment.core.types cimport address_t, stream_t, thread_t

cdef class Allocator:
    cdef Engine* engine
    cdef readonly Device device
    cdef int level                      # what contexts are gathered for: see History in the .pyx
    cdef object current_settings
    cdef list observers, callbacks, trackers, annotations
    cdef object most_annotations
    cdef list forgotten_pools           # closed from inside the engine: given up when it is entered next
    cdef bint shared_by_pointer         # C entry points refer to the engine: it must outlive everything
    cdef object __weakref__

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF
    cdef object allocate(self, object size, object stream, thread_t thread)
    cdef int enter(self) except -1
    cdef int close_forgotten_pools(self) except -1
    cdef void wait_outside(self) noexcept
    cdef long long checked_size(self, object given) except -1
    cdef int raise_out_of_memory(self, object error) except -1
    cdef object failed(self, const Failure* failure)
    cdef int release_address(self, address_t address) except -1
    cdef list history(self)
    cdef PoolOwner* owner_of(self, pool) except NULL
