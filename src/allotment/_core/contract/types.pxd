"""Plain integers, given a role.

Addresses, sizes and handles are all 64-bit numbers. A signature that names the role of each number makes it hard to
pass the wrong one. Handles are opaque to the engine: only the device that created a handle can use it.
"""

from libc.stdint cimport int64_t, uint64_t

ctypedef uint64_t bytes_t       # a number of bytes
ctypedef uint64_t address_t     # an address in a device's address space; 0 is "none"
ctypedef uint64_t stream_t      # a raw stream handle; 0 is the device's default stream
ctypedef uint64_t event_t       # a device's event
ctypedef uint64_t chunk_t       # a device's handle of one piece of physical memory
ctypedef uint64_t capture_t     # identity of one graph capture; 0 is "not capturing"
ctypedef uint64_t graph_t       # a device's handle of one captured graph
ctypedef uint64_t node_t        # one node of the graph being captured
ctypedef uint64_t thread_t      # identity of a thread
ctypedef int64_t count_t        # a counter that may go down
ctypedef int device_t           # index of a device
