cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from allotment._core.contract.raising cimport keep_failure
from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, NOT_READY, OK, OUT_OF_MEMORY, status_t
from allotment._core.contract.types cimport address_t, bytes_t, device_t, node_t, stream_t
from allotment._core.tools.arrays cimport make_room_for
from allotment._core.tools.lock cimport lock_is_mine, lock_try, lock_wait_outside
from allotment._core.tools.pointer_map cimport map_get, map_put, map_reserve

import sys


cdef status_t enter(Simulation* device, int operation) noexcept nogil:
    if not lock_try(&device.lock):
        if lock_is_mine(&device.lock):
            return DEVICE_ERROR     # a finalizer or a script called during a fork, or during a call of this device
        lock_wait_outside(&device.lock)
    device.called[operation] += 1
    if is_due(&device.refusal):
        return leave(device, device.refusal.status)
    if is_due(&device.refusals[operation]):
        return leave(device, device.refusals[operation].status)
    return OK


cdef status_t enter_on(Simulation* device, int operation, stream_t handle, SimStream** stream) noexcept nogil:
    cdef status_t status = enter(device, operation)
    if status != OK:
        return status
    stream[0] = stream_at(device, handle)
    return OK if stream[0] != NULL else leave(device, INVALID)


cdef inline bint is_due(Refusal* refusal) noexcept nogil:
    if refusal.times == 0:
        return False
    if refusal.after > 0:
        refusal.after -= 1
        return False
    refusal.times -= 1
    return True


cdef status_t scripted(Simulation* device, str method, tuple arguments, uint64_t* answer) noexcept with gil:
    try:
        answerer = getattr(<object> device.script, method, None)
        if answerer is None:
            return NOT_READY
        said = answerer(*arguments)
        if said is None or said is False:
            return OUT_OF_MEMORY
        answer[0] = said
        return OK
    except BaseException:
        keep_failure(device, DEVICE_ERROR, sys.exc_info()[1])
        return DEVICE_ERROR


cdef address_t take_addresses(Simulation* device, bytes_t size) noexcept nogil:
    cdef address_t address = device.next_address
    device.next_address += (size + PAGE - 1) // PAGE * PAGE
    return address


cdef SimStream* stream_at(Simulation* device, stream_t handle) noexcept nogil:
    cdef SimStream* stream = <SimStream*> map_get(&device.streams, handle + 1)
    if stream == NULL:
        if not map_reserve(&device.streams):
            return NULL
        stream = <SimStream*> calloc(1, sizeof(SimStream))
        if stream != NULL:
            stream.handle = handle
            stream.older = device.newest_stream
            device.newest_stream = stream
            map_put(&device.streams, handle + 1, stream)
    return stream if stream != destroyed() else NULL


cdef SimStream destroyed_stream

cdef SimStream* destroyed() noexcept nogil:
    return &destroyed_stream


cdef bint set_add(NodeSet* set, const node_t* nodes, size_t count) noexcept nogil:
    cdef size_t i, j
    if not make_room_for(<void**> &set.nodes, &set.room, set.count + count, sizeof(node_t)):
        return False
    for i in range(count):
        j = 0
        while j < set.count and set.nodes[j] != nodes[i]:
            j += 1
        if j == set.count:
            set.nodes[set.count] = nodes[i]
            set.count += 1
    return True


cdef void set_clear(NodeSet* set) noexcept nogil:
    free(set.nodes)
    memset(set, 0, sizeof(NodeSet))


cdef node_t add_node(Simulation* device, SimStream* stream) noexcept nogil:
    cdef NodeSet* before = <NodeSet*> calloc(1, sizeof(NodeSet))
    cdef node_t node
    cdef NodeSet* made = &stream.capture.made
    if before == NULL or not map_reserve(&device.nodes) or not make_room_for(
            <void**> &made.nodes, &made.room, made.count + 1, sizeof(node_t)):
        free(before)
        return 0
    before[0] = stream.terminals
    memset(&stream.terminals, 0, sizeof(NodeSet))
    node = new_handle(device)
    map_put(&device.nodes, node, before)
    made.nodes[made.count] = node
    made.count += 1
    set_add(&stream.terminals, &node, 1)
    return node


cdef dict indices = {}      # index -> number of living devices that have it


cdef int list_index(device_t index) except -1:
    with cython.critical_section(indices):
        indices[index] = indices.get(index, 0) + 1
    return 0


cdef int unlist_index(device_t index) except -1:
    with cython.critical_section(indices):
        indices[index] -= 1
        if indices[index] == 0:
            del indices[index]
    return 0


cdef bint is_listed_index(device_t index) noexcept with gil:
    return index in indices
