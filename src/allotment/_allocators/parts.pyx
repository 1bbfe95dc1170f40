from allotment._allocators.base cimport AllocatorBase
from allotment._core.contract.table cimport INVALID
from allotment._core.contract.types cimport device_t
from allotment._core.tools.arguments cimport read_callable, read_device_index, read_fraction, refuse_pickling

from allotment import _texts as texts
from allotment.errors import DeviceError, RequestError


cdef class Part:
    """Part(allocator)\n--\n
    Operations of an allocator that belong together; users get one from the allocator.
    """

    def __cinit__(self, AllocatorBase allocator not None):
        self.whole = allocator

    def __reduce__(self):
        return refuse_pickling(self, "its allocator's memory belongs to this process")

    def __repr__(self):
        return f"<{type(self).__name__} of {self.whole!r}>"

    @property
    def allocator(self) -> Any:
        """Allocator that this is a part of."""
        return self.whole


cdef class BasicLimits(Part):
    """BasicLimits(allocator)\n--\n
    How much memory an allocator may hold; `allocator.limits` of an `AsyncAllocator`.
    """

    @property
    def memory_fraction(self) -> float:
        """The limit as a fraction of the device's memory, from 0.0 to 1.0; 1.0 means no limit.

        Setting it raises RequestError for any other number, UnsupportedError if the device does not report its memory
        size.
        """
        return self.whole.fraction()

    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None:
        self.whole.put_fraction(read_fraction(fraction))


cdef class ObservedLimits(BasicLimits):
    """ObservedLimits(allocator)\n--\n
    Limits, and observers that are called when a request fails for want of memory.
    """

    def attach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call `observer(facts)` with the OutOfMemoryFacts before an OutOfMemoryError is raised, until it is detached.

        It runs on the thread whose request failed, without any lock held, and may use the allocator.
        `sys.unraisablehook` gets its exceptions; the request still ends with its OutOfMemoryError. Raises TypeError if
        it is not callable.
        """
        self.whole.observers.append(read_callable(observer, "an observer"))

    def detach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Stop calling an observer.

        One attached twice is called once from now on. Raises RequestError if it is not attached.
        """
        try:
            self.whole.observers.remove(observer)
        except ValueError:
            raise RequestError(
                f"{observer!r} is not an observer of {self.whole!r}, or it is detached already") from None


cdef class BasicSharing(Part):
    """BasicSharing(allocator)\n--\n
    Memory that other devices use too; `allocator.sharing` of an allocator without blocks for other processes.
    """

    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` access this allocator's memory, including memory that it gets later.

        That includes memory of other processes that is open on this device (`open_shared`). Does nothing for this
        device's own index. Raises RequestError for an index that no device has, UnsupportedError if the device has no
        peers, and DeviceError.
        """
        cdef device_t other = read_device_index(peer, self.whole.device)
        if peer is None:
            raise TypeError("a peer must be the index of a device, not None")
        self.whole.require_device("enable_peer_access")
        if other == self.whole.device.table.device:
            return
        try:
            self.whole.reach_peer(other)
        except DeviceError as error:
            if error.status != INVALID or error.operation not in ("peer_enable", "ordered_access"):
                raise
            raise RequestError(f"{self.whole.device.name} has no peer of index {peer}") from error


cdef class BasicInspection(Part):
    """BasicInspection(allocator)\n--\n
    Figures and checks beyond `stats`, for tools and tests.
    """

    def nested_stats(self) -> dict[str, Any]:
        """Return all counters, by metric, size class and kind: nested["allocated_bytes"]["all"]["current"].

        `stats` has them flattened. Briefly holds the allocator's lock, or calls the device if the device counts. Raises
        DeviceError. Safe to call from several threads.
        """
        return self.whole.counters()

    def summary(self, abbreviated: bool = False) -> str:
        """Return the counters as a boxed table for people; `abbreviated` omits the rows by size class."""
        return texts.memory_summary(self.whole.stats(), self.whole.device.name, abbreviated=abbreviated)
