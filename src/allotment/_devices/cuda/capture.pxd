"""Captures and graphs of the contract, through the driver.

The first launch of a graph instantiates it. A graph that is only counted or destroyed is never instantiated.
"""

from libc.stddef cimport size_t

from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._devices.cuda.context cimport CudaContext
from allotment._devices.cuda.driver cimport CUgraph, CUgraphExec

cdef struct CudaWork:               # what a graph's handle points to
    CUgraph graph
    CUgraphExec executable          # NULL until instantiated

cdef void fill_capture(DeviceTable* table) noexcept

cdef status_t count_nodes(CudaContext* context, CudaWork* work, size_t* count) noexcept nogil
cdef status_t instantiate(CudaContext* context, CudaWork* work) noexcept nogil
