from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.caching.entering cimport enter_once
from allotment._allocators.caching.entry_points cimport block_size
from allotment._core.contract.types cimport address_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.model.model cimport Block, Engine
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment.torch._deep.bound_devices cimport bound, bound_allocator
from allotment.torch._deep.failures cimport set_failure
from allotment.torch._deep.header cimport allotment_interface
from allotment.torch._deep.history cimport shown_context

from allotment._allocators.opened import _open_torch
from allotment._texts import pytorch_exact_address
from allotment.errors import AddressError


cdef size_t size_of_block(int device, void* address) noexcept nogil:
    return block_size(bound(device).entry_points, address) if bound(device).entry_points != NULL else 0


cdef uint32_t block_context(int device, const void* address) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef Block* block
    cdef uint32_t context = 0
    if engine == NULL or not enter_once(engine):
        return 0
    block = block_at(engine, <address_t> address)
    if block != NULL:
        context = shown_context(block.context)
    engine_leave(engine)
    return context


cdef void* allocate_at(int device, size_t size, void* address, uint64_t stream) noexcept with gil:
    try:
        return <void*> <size_t> bound_allocator(device).pools.malloc_at(size, <size_t> address, stream)
    except AddressError as error:
        failure = RuntimeError(pytorch_exact_address(error.address))
        set_failure(failure)
        return NULL
    except BaseException as error:
        set_failure(error)
        return NULL


cdef int share(int device, void* address, uint64_t* offset,
               void (*handle)(void*, const char*, size_t) noexcept nogil, void* self) noexcept with gil:
    cdef bytes written
    try:
        offset[0], written = bound_allocator(device).share_torch(<size_t> address)
        handle(self, written, len(written))
        return 1
    except BaseException as error:
        return set_failure(error)


cdef void* open_shared(int device, const char* data, size_t length, uint64_t* address) noexcept with gil:
    try:
        opened, address[0] = _open_torch(data[:length], 0, 0, bound_allocator(device).device)
        held = (opened, <uint64_t> address[0])
        Py_INCREF(held)
        return <void*> held
    except BaseException as error:
        set_failure(error)
        return NULL


cdef void close_shared(void* held) noexcept nogil:
    if not interpreter_ends():
        close_opened(held)


cdef void close_opened(void* held) noexcept with gil:
    try:
        opened, address = <object> held
        opened.free(address)
    except BaseException as error:
        set_failure(error)
    Py_DECREF(<object> held)


cdef void fill_blocks(allotment_interface* table) noexcept:
    table.block_size = size_of_block
    table.block_context = block_context
    table.allocate_at = allocate_at
    table.share = share
    table.open_shared = open_shared
    table.close_shared = close_shared
