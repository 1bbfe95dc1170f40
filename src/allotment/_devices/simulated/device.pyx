"""A device that has only addresses and capacity. Streams finish when told to.

It keeps exact records (what is reserved, created, mapped and where) and refuses what a real driver would refuse, so a
test that passes here was not helped by a permissive fake. It never uses an address twice. A script can decide in its
place: the addresses, refusals and events of a recording.

Without a script, no code here needs the interpreter lock.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset, strlen

from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport (
    CAN_PEERS, DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY, PEER_ENABLE, Device, DeviceTable, entry, status_t)
from allotment._core.contract.types cimport address_t, capture_t, device_t, event_t, node_t, stream_t
from allotment._core.tools.arguments cimport SIZE_BITS, read_arguments, read_device_index
from allotment._core.tools.forks cimport LONG_LOCK, guard_forks, unguard_forks
from allotment._core.tools.lock cimport lock_give, lock_is_mine, lock_wait
from allotment._core.tools.weak_references cimport clear_weak_references_first
from allotment._devices.simulated.memory cimport clear_memory, fill_memory
from allotment._devices.simulated.pool cimport clear_pool, fill_pool
from allotment._devices.simulated.simulation cimport (
    Refusal, Simulation, SimStream, add_node, enter, is_listed_index, leave, list_index, stream_at, unlist_index)
from allotment._devices.simulated.streams cimport clear_streams, fill_streams

from allotment._core.contract.operations import OPERATIONS
from allotment._devices.graphs import begin_capture, end_capture
from allotment._settings import parse_size, shortest_size
from allotment.errors import RequestError


cdef status_t peer_enable(void* self, device_t other) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef bint is_known = is_listed_index(other)
    cdef status_t status = enter(device, PEER_ENABLE)
    return status if status != OK else leave(device, OK if is_known else INVALID)


cdef size_t describe(void* self, char* text, size_t capacity) noexcept nogil:
    cdef const char* words = b"the simulated device refused"
    cdef size_t length = min(strlen(words), capacity)
    memcpy(text, words, length)
    return length


cdef Refusal refusal_of(uint64_t times, uint64_t after, bint out_of_memory) noexcept:
    cdef Refusal refusal
    refusal.after = after
    refusal.times = times
    refusal.status = OUT_OF_MEMORY if out_of_memory else DEVICE_ERROR
    return refusal


@cython.no_gc_clear     # an allocator that is collected with the device returns its memory to it
cdef class SimulatedDevice(Device):
    """SimulatedDevice(capacity, index=0, script=None)\n--\n
    Addresses and capacity, no memory. Streams finish when told to.

    A stream has work only if `launch` gave it some; an event recorded after unfinished work is not ready until
    `finish`. Waiting (synchronize) finishes what it waits for.

    `capacity` is the device's memory, in bytes or as "80GiB", `index` its number in reports; a `script` decides in its
    place, for replaying recordings. Raises SettingsError for an invalid size, RequestError for a capacity of 0 or of
    2**60 and above. Safe to use from several threads, except `finish` and the captures of one stream.
    """

    def __cinit__(self, *args, **kwargs):
        cdef DeviceTable* table = &self.table
        cdef Simulation* sim = &self.simulation
        capacity, index, script = read_arguments(SimulatedDevice, args, kwargs).values()
        memset(sim, 0, sizeof(Simulation))
        guard_forks(&sim.fork_guard, LONG_LOCK, &sim.lock)
        table.self = sim
        size = parse_size(capacity)
        if not 0 < size < 2 ** <object> SIZE_BITS:
            raise RequestError(f"invalid capacity of a simulated device: {size} bytes; give 1 to 2**{SIZE_BITS} - 1")
        sim.capacity = size
        self.script = script
        sim.next_address = <address_t> 1 << 40
        sim.last_handle = <uint64_t> 1 << 20
        self.family = "simulated"
        table.device = read_device_index(index, self)
        self.name = f"sim:{shortest_size(size)}" + (f"#{table.device}" if table.device else "")
        table.capabilities = CAN_PEERS
        table.peer_enable = peer_enable
        table.describe = describe
        if not (fill_memory(table, sim) and fill_streams(table, sim) and fill_pool(table, &sim.pool)):
            raise MemoryError("the host has no memory for the records of a simulated device")
        list_index(table.device)
        sim.is_listed = True

    @cython.embedsignature(False)    # the class has it
    def __init__(self, capacity: int | str, index: int = 0, script: Script | None = None):
        pass    # `__cinit__` has read them, so that every object is complete

    def __dealloc__(self):
        cdef Simulation* sim = &self.simulation
        unguard_forks(&sim.fork_guard)
        if sim.is_listed:
            unlist_index(self.table.device)
        clear_memory(sim)
        clear_streams(sim)
        clear_pool(&sim.pool)

    @property
    def script(self) -> Script | None:
        """Script that decides in the device's place, for replaying recordings; None: the device itself."""
        return self.answerer

    @script.setter
    def script(self, script: Script | None) -> None:
        self.answerer = script
        self.simulation.script = <void*> script if script is not None else NULL

    @property
    def capacity(self) -> int:
        """Bytes that the device has."""
        return self.simulation.capacity

    @property
    def used(self) -> int:
        """Bytes of existing segments and chunks, and of the pool."""
        return self.simulation.used

    @property
    def calls(self) -> dict[str, int]:
        """Number of calls of each contract operation, by its name."""
        return {operation.name: self.simulation.called[<int> place] for place, operation in enumerate(OPERATIONS)
                if entry(&self.table, place)[0] != NULL and not operation.is_special}

    def refuse(self, operation: str, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Make calls of one contract operation ("segment_allocate", "map", ...) fail: `times` of them, after `after`
        calls.

        They fail as out of memory or, with `out_of_memory=False`, as a device error. Raises RequestError for an
        operation that this device does not have.
        """
        known = list(self.calls)
        if operation not in known:
            raise RequestError(f"{self.name} does not have the operation {operation!r}; it has {', '.join(known)}")
        place = [known.name for known in OPERATIONS].index(operation)
        self.simulation.refusals[<int> place] = refusal_of(times, after, out_of_memory)

    def refuse_calls(self, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Make calls of any operation fail: `times` of them, after `after` calls; 0 times ends it."""
        self.simulation.refusal = refusal_of(times, after, out_of_memory)

    def launch(self, stream_t stream) -> int:
        """Give the stream a unit of work, done at `finish`; in a capture a node. Returns the node's number, else 0."""
        cdef Simulation* sim = &self.simulation
        cdef SimStream* on
        cdef node_t node = 0
        if lock_is_mine(&sim.lock):
            self.raise_unless(DEVICE_ERROR, "launch")
        with nogil:
            lock_wait(&sim.lock)
            on = stream_at(&self.simulation, stream)
            if on != NULL and on.capture != NULL:
                node = add_node(sim, on)
            elif on != NULL:
                on.launched += 1
            lock_give(&sim.lock)
        self.raise_unless(OK if on != NULL else INVALID, "launch")
        return node

    def finish(self, stream: int | None = None) -> None:
        """Finish all work launched so far, on one stream or (None) on all."""
        cdef SimStream* which
        if stream is None:
            self.raise_unless(self.table.device_synchronize(&self.simulation), "device_synchronize")
            return
        which = stream_at(&self.simulation, stream)
        self.raise_unless(OK if which != NULL else INVALID, "stream_synchronize")
        which.finished = which.launched

    def create_stream(self) -> int:
        """Create a stream and return its handle."""
        cdef stream_t stream = 0
        self.raise_unless(self.table.stream_create(&self.simulation, &stream), "stream_create")
        return stream

    def destroy_stream(self, stream_t stream) -> None:
        """Destroy a stream; later uses of its handle fail (DeviceError)."""
        self.raise_unless(self.table.stream_destroy(&self.simulation, stream), "stream_destroy")

    def wait(self, stream_t stream, stream_t on) -> None:
        """Make later work of `stream` wait for the current work of `on`; `stream` joins the capture that `on` is in."""
        cdef event_t event = 0
        self.raise_unless(self.table.event_create(&self.simulation, &event), "event_create")
        try:
            self.raise_unless(self.table.event_record(&self.simulation, event, on), "event_record")
            self.raise_unless(self.table.stream_wait(&self.simulation, stream, event), "stream_wait")
        finally:
            self.table.event_destroy(&self.simulation, event)

    def begin_capture(self, stream_t stream) -> int:
        """Start a capture: work launched on the stream becomes nodes from now on. Returns the capture's id."""
        return begin_capture(self, stream)

    def end_capture(self, stream_t stream) -> DeviceGraph:
        """End the capture that began on the stream.

        Raises DeviceError if the capture was broken or a stream that joined was not joined back.
        """
        return end_capture(self, stream)

    def break_capture(self, stream_t stream) -> None:
        """Invalidate the stream's capture, as a forbidden call would. Raises RequestError if it is in none."""
        cdef SimStream* which = stream_at(&self.simulation, stream)
        if which == NULL or which.capture == NULL:
            raise RequestError(f"stream {stream:#x} of {self.name} is not being captured")
        which.capture.broken = True

    def capture_of(self, stream_t stream) -> int:
        """Return the id of the capture that the stream is in, 0 if none."""
        cdef capture_t capture = 0
        self.raise_unless(self.table.capture_status(&self.simulation, stream, &capture), "capture_status")
        return capture

    cdef int raise_unless(self, status_t status, str operation) except -1:
        return check_status(self, status, operation)


clear_weak_references_first(SimulatedDevice)
