cimport cython
from cpython.ref cimport Py_DECREF
from libc.stdlib cimport malloc

from allotment._allocators.pluggable.ledger cimport Entry, ledger_enter, ledger_remove
from allotment._allocators.pluggable.plugged_memory cimport Lender, Plug, PluggedMemory, unknown_pointer
from allotment._allocators.upcalls cimport report
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.model.model cimport RawAllocator

from allotment.errors import AddressError


cdef RawAllocator lend_segments(PluggedMemory memory, device_t device) except *:
    cdef RawAllocator raw
    cdef Lender* lender
    with cython.critical_section(memory):
        lender = memory.lenders
        while lender != NULL and lender.device != device:
            lender = lender.next
        if lender == NULL:
            lender = <Lender*> malloc(sizeof(Lender))
            if lender == NULL:
                raise MemoryError("the host has no memory for the allocator's own records")
            lender.plug = &memory.plug
            lender.device = device
            lender.next = memory.lenders
            memory.lenders = lender
    raw.allocate = lend
    raw.free = take_back
    raw.drop = drop_lender
    raw.self = lender
    return raw


# --- called from inside an engine, without the interpreter lock ---

cdef address_t lend(void* self, bytes_t size, stream_t stream) noexcept nogil:
    cdef Lender* lender = <Lender*> self
    cdef Plug* plug = lender.plug
    cdef Entry entry
    if plug.functions.alloc == NULL:
        return lend_from_python(lender, size, stream)
    entry.address = <address_t> plug.functions.alloc(size, lender.device, <void*> stream)
    if not ledger_enter(&plug.ledger, entry.address, size, lender.device, stream):
        entry.size, entry.device, entry.stream = size, lender.device, stream
        release(plug, &entry)
        return 0
    return entry.address


cdef address_t lend_from_python(Lender* lender, bytes_t size, stream_t stream) noexcept with gil:
    cdef PluggedMemory owner = <PluggedMemory> lender.plug.owner
    try:
        return owner.obtain(size, lender.device, stream)
    except MemoryError:
        return 0
    except BaseException as error:
        report(error, owner)
        return 0


cdef void take_back(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil:
    cdef Plug* plug = (<Lender*> self).plug
    cdef Entry entry
    if ledger_remove(&plug.ledger, address, &entry):
        release(plug, &entry)
    else:
        report_unknown(plug, address)


cdef void report_unknown(Plug* plug, address_t address) noexcept with gil:
    try:
        raise unknown_pointer(address)
    except AddressError as error:
        report(error, <object> plug.owner)


cdef void release(Plug* plug, const Entry* entry) noexcept nogil:
    if plug.functions.free != NULL:
        plug.functions.free(<void*> entry.address, entry.size, entry.device, <void*> entry.stream)
    else:
        release_to_python(plug, entry)


cdef void release_to_python(Plug* plug, const Entry* entry) noexcept with gil:
    cdef PluggedMemory owner = <PluggedMemory> plug.owner
    try:
        owner.hand_back(entry.address, entry.size, entry.device, entry.stream)
    except BaseException as error:
        report(error, owner)


cdef void drop_lender(void* self) noexcept with gil:
    Py_DECREF(<object> (<Lender*> self).plug.owner)
