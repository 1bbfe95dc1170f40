cimport cython
from libc.stdint cimport uintptr_t

from allotment._allocators.upcalls cimport report
from allotment._core.contract.table cimport OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, count_t, device_t, event_t, stream_t
from allotment._core.model.model cimport Engine
from allotment._core.records.stats cimport tally_now

import atexit

from allotment.errors import UnsupportedError

# By the `self` of a device's table.
cdef dict BY_DEVICE = {}


cdef class Annotations:
    """The annotations of all engines on one device; allocators create them."""

    def __init__(self, Device device, domain):
        self.name = device.name
        self.domain = domain
        self.reserved_counter = domain.get_counter(f"{device.name} reserved", int)
        self.allocated_counter = domain.get_counter(f"{device.name} allocated", int)
        self.engines = {}
        self.behind = self.table = device.table
        replace_functions(&self.table)

    @cython.critical_section
    cdef void open_engine(self, Engine* engine) noexcept:
        self.engines[<uintptr_t> engine] = <uintptr_t> engine.table
        engine.table = &self.table

    @cython.critical_section
    cdef void close_engine(self, Engine* engine) noexcept:
        table = self.engines.pop(<uintptr_t> engine, None)
        if table is not None:
            engine.table = <DeviceTable*> <uintptr_t> table

    cdef void begin(self, str operation, bytes_t size) noexcept:
        try:
            self.domain.push_range(message=operation, category=self.name, payload=size)
        except BaseException as error:
            report(error, self)

    cdef void end(self, count_t change) noexcept:
        cdef count_t allocated = 0
        try:
            self.domain.pop_range()
            if change == 0:
                return
            with cython.critical_section(self):     # no engine goes meanwhile
                self.reserved += change
                reserved = self.reserved
                for engine in self.engines:
                    allocated += tally_now(&(<Engine*> <uintptr_t> engine).stats.allocated_bytes)
            self.reserved_counter.sample(reserved)
            self.allocated_counter.sample(allocated)
        except BaseException as error:
            report(error, self)


cdef Annotations annotate(Device device, Engine* engine):
    cdef Annotations found
    domain = listening_domain()
    if domain is None:
        return None
    with cython.critical_section(BY_DEVICE):
        found = BY_DEVICE.get(<uintptr_t> device.table.self)
        if found is None or not found.engines:      # another device may have the address of one that is gone
            found = Annotations(device, domain)
            BY_DEVICE[<uintptr_t> device.table.self] = found
        found.open_engine(engine)
    return found


cdef object listening_domain():
    try:
        import nvtx     # imported late: few programs need it
    except ImportError:
        nvtx = None
    if not hasattr(nvtx, "Counter"):
        raise UnsupportedError(
            "nvtx:True needs the package nvtx, 0.2.16 or later: pip install 'allotment[nvtx]'", operation="nvtx")
    domain = nvtx.get_domain("allotment")
    return domain if hasattr(domain, "handle") else None       # a domain without a handle does nothing


@atexit.register
def _end() -> None:
    """End a range. C code may release memory when the interpreter is gone."""
    cdef Annotations annotations
    for annotations in list(BY_DEVICE.values()):
        for engine in list(annotations.engines):
            annotations.close_engine(<Engine*> <uintptr_t> engine)


# --- the functions; each calls the device's own ---

cdef void replace_functions(DeviceTable* table) noexcept:
    if table.segment_allocate != NULL:
        table.segment_allocate = segment_allocate
    if table.segment_free != NULL:
        table.segment_free = segment_free
    if table.chunk_create != NULL:
        table.chunk_create = chunk_create
    if table.chunk_release != NULL:
        table.chunk_release = chunk_release
    if table.map != NULL:
        table.map = map_chunk
    if table.unmap != NULL:
        table.unmap = unmap
    if table.set_access != NULL:
        table.set_access = set_access
    if table.stream_synchronize != NULL:
        table.stream_synchronize = stream_synchronize
    if table.event_synchronize != NULL:
        table.event_synchronize = event_synchronize
    if table.device_synchronize != NULL:
        table.device_synchronize = device_synchronize


cdef Annotations begun(void* self, str operation, bytes_t size=0):
    cdef Annotations found = BY_DEVICE[<uintptr_t> self]
    found.begin(operation, size)
    return found


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    cdef Annotations annotations = begun(self, "segment_allocate", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.segment_allocate(self, size, stream, address)
    annotations.end(<count_t> size if status == OK else 0)
    return status


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept with gil:
    cdef Annotations annotations = begun(self, "segment_free", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.segment_free(self, address, size)
    annotations.end(-<count_t> size if status == OK else 0)
    return status


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept with gil:
    cdef Annotations annotations = begun(self, "chunk_create", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.chunk_create(self, size, chunk)
    annotations.end(<count_t> size if status == OK else 0)
    return status


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept with gil:
    cdef Annotations annotations = begun(self, "chunk_release", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.chunk_release(self, chunk, size)
    annotations.end(-<count_t> size if status == OK else 0)
    return status


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept with gil:
    cdef Annotations annotations = begun(self, "map", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.map(self, address, size, chunk)
    annotations.end(0)
    return status


cdef status_t unmap(void* self, address_t address, bytes_t size) noexcept with gil:
    cdef Annotations annotations = begun(self, "unmap", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.unmap(self, address, size)
    annotations.end(0)
    return status


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t device) noexcept with gil:
    cdef Annotations annotations = begun(self, "set_access", size)
    cdef status_t status
    with nogil:
        status = annotations.behind.set_access(self, address, size, device)
    annotations.end(0)
    return status


cdef status_t stream_synchronize(void* self, stream_t stream) noexcept with gil:
    cdef Annotations annotations = begun(self, "stream_synchronize")
    cdef status_t status
    with nogil:
        status = annotations.behind.stream_synchronize(self, stream)
    annotations.end(0)
    return status


cdef status_t event_synchronize(void* self, event_t event) noexcept with gil:
    cdef Annotations annotations = begun(self, "event_synchronize")
    cdef status_t status
    with nogil:
        status = annotations.behind.event_synchronize(self, event)
    annotations.end(0)
    return status


cdef status_t device_synchronize(void* self) noexcept with gil:
    cdef Annotations annotations = begun(self, "device_synchronize")
    cdef status_t status
    with nogil:
        status = annotations.behind.device_synchronize(self)
    annotations.end(0)
    return status
