"""The ring of the trace, one report at a time. A record is known by its address."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from allotment._core.contract.types cimport address_t
from allotment._core.records.trace cimport (
    Trace, TraceRecord, trace_clear, trace_copy, trace_init, trace_listen, trace_report, trace_track)


cdef class Ring:
    cdef Trace trace
    cdef readonly list received     # addresses that the tracker got

    def __cinit__(self):
        trace_init(&self.trace)
        self.received = []

    def __dealloc__(self):
        trace_clear(&self.trace)

    def listen(self, bint history, size_t most):
        trace_listen(&self.trace, history, most)

    def track(self, bint on):
        if on:
            trace_track(&self.trace, note, <void*> self)
        else:
            trace_track(&self.trace, NULL, NULL)

    def skip(self, uint32_t actions):
        self.trace.skip = actions

    def report(self, int action, address_t address):
        trace_report(&self.trace, action, address, 512, 7, 1, 2, 0)

    def clear(self):
        trace_clear(&self.trace)

    def content(self):
        """Return (action, address) of every record, oldest first."""
        cdef TraceRecord* copies = <TraceRecord*> malloc((self.trace.stored + 1) * sizeof(TraceRecord))
        cdef size_t i
        if copies == NULL:
            raise MemoryError
        trace_copy(&self.trace, copies)
        found = []
        for i in range(self.trace.stored):
            assert copies[i].size == 512 and copies[i].stream == 7
            found.append((copies[i].action, copies[i].address))
        free(copies)
        return found

    @property
    def on(self):
        return self.trace.on


cdef void note(void* listener, const TraceRecord* record) noexcept nogil:
    with gil:
        (<Ring> listener).received.append(record.address)
