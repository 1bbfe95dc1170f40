from libc.stdint cimport uint64_t
from libc.stdlib cimport free as free_host_memory

from allotment._allocators.base cimport AllocatorBase, amount
from allotment._allocators.pluggable.ledger cimport (
    Entry, ledger_clear, ledger_enter, ledger_find_around, ledger_init, ledger_live_bytes, ledger_refused, ledger_stats)
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.mechanism.address_lookup cimport ELSEWHERE, IN_BLOCK, AddressLookup
from allotment._core.records.stats cimport Stats, stats_nested
from allotment._core.tools.arguments cimport read_address, read_device_index, read_number, read_stream
from allotment._core.tools.weak_references cimport clear_weak_references_first

import ctypes

from _ctypes import CFuncPtr

from allotment._allocators.current import note_holder
from allotment.errors import (
    AddressError, DeviceError, OutOfMemoryError, OutOfMemoryFacts, RequestError, UnsupportedError)


cdef class PluggedMemory(AllocatorBase):
    """PluggedMemory(*args, **kwargs)\n--\n
    Functions that provide memory, and the records of it; users hold a `PluggableAllocator`.
    """

    def __cinit__(self, *args, **kwargs):
        self.plug.owner = <void*> self
        self.callables = {}
        self.kept_alive = []
        self.device = Device()
        self.device.name = self.device.family = "pluggable"
        if not ledger_init(&self.plug.ledger):
            raise MemoryError("the host has no memory for the allocator's own records")
        note_holder(self)

    def __dealloc__(self):
        cdef Lender* lender = self.lenders
        cdef Lender* following
        while lender != NULL:
            following = lender.next
            free_host_memory(lender)
            lender = following
        ledger_clear(&self.plug.ledger)

    cdef str place(self):
        return AllocatorBase.place(self) if self.has_device else "without a device"

    cdef str figures(self):
        # Each pointer is a segment of one block, so live and reserved bytes are the same.
        live = amount(ledger_live_bytes(&self.plug.ledger))
        return f"{live} live, {live} reserved"

    cdef bytes_t live_bytes(self) noexcept:
        return ledger_live_bytes(&self.plug.ledger)

    # --- the functions ---

    cdef int take_functions(self, dict given) except -1:
        cdef Functions* functions = &self.plug.functions
        if given["alloc"] is None or given["free"] is None:
            raise TypeError("PluggableAllocator needs both alloc and free, and one of them is None")
        functions.alloc = <alloc_t> self.read_function("alloc", given["alloc"])
        functions.free = <free_t> self.read_function("free", given["free"])
        for name, function in given.items():
            if name != "alloc" and name != "free":
                self.replace_function(name, function)
        return 0

    cdef int replace_function(self, str name, object given) except -1:
        """Replace an optional function. Calls in progress end as they began."""
        cdef Functions* functions = &self.plug.functions
        cdef void* found = self.read_function(name, given)
        if name == "init":
            functions.init = <init_t> found
        elif name == "reset":
            functions.reset = <reset_t> found
        elif name == "memory_fraction":
            functions.memory_fraction = <memory_fraction_t> found
        elif name == "base_alloc":
            functions.base_alloc = <base_alloc_t> found
        elif name == "record_stream":
            functions.record_stream = <record_stream_t> found
        elif name == "begin_allocate_to_pool":
            functions.begin_allocate_to_pool = <begin_pool_t> found
        elif name == "end_allocate_to_pool":
            functions.end_allocate_to_pool = <end_pool_t> found
        else:
            assert name == "release_pool"
            functions.release_pool = <end_pool_t> found
        if found != NULL or given is None:
            self.callables.pop(name, None)
        return 0

    cdef void* read_function(self, str name, object given) except? NULL:
        """Return the C function that was given; NULL for None, or for a Python callable, which is stored."""
        cdef uint64_t address = 0
        if given is None:
            return NULL
        if isinstance(given, CFuncPtr):
            self.kept_alive.append(given)
            given = ctypes.cast(given, ctypes.c_void_p).value or 0
        if isinstance(given, int):
            if not read_number(given, &address) or address == 0:
                raise RequestError(f"invalid address of the {name} function: {given}")
            return <void*> address
        if not callable(given):
            raise TypeError(
                f"{name} must be a C function (its address or a ctypes function) or a callable, "
                f"not {type(given).__name__}")
        self.callables[name] = given
        return NULL

    cdef int share_functions(self, PluggedMemory other) except -1:
        """Let `other`, which has its own records, use the same functions on the same device."""
        other.plug.functions = self.plug.functions
        other.callables = dict(self.callables)
        other.kept_alive = list(self.kept_alive)
        other.device = self.device
        other.has_device = self.has_device
        other.initialized = self.initialized
        return 0

    cdef object call(self, str name, tuple arguments):
        function = self.callables.get(name)
        if function is None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            raise failed_function(name, error) from error

    # --- the device, if it was given one ---

    cdef device_t device_index(self, object device) except? -1:
        return read_device_index(device, self.device)

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF:
        return read_stream(stream, self.device if self.has_device else None)

    cdef int require_device(self, str operation) except -1:
        if self.has_device:
            return 0
        words = ("getMemoryInfo is not implemented for this allocator yet. It" if operation == "memory_info"
                 else f"a pluggable allocator does not support {operation}; it")
        raise UnsupportedError(
            f"{words} was made without a device: give it one, PluggableAllocator(..., device=)", operation=operation)

    # --- memory ---

    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        cdef Entry entry
        if not ledger_find_around(&self.plug.ledger, address, &entry):
            return ELSEWHERE
        start[0], size[0] = entry.address, entry.size
        return IN_BLOCK

    cdef address_t obtain(self, bytes_t size, device_t device, stream_t stream) except? 0:
        """Return what the alloc function returned, null included, after entering it in the ledger."""
        cdef alloc_t function = self.plug.functions.alloc
        cdef address_t address
        if function != NULL:
            with nogil:
                address = <address_t> function(size, device, <void*> stream)
        else:
            address = self.ask_python(size, device, stream)
        if not ledger_enter(&self.plug.ledger, address, size, device, stream):
            self.hand_back(address, size, device, stream)
            raise MemoryError("the host has no memory for the allocator's own records")
        return address

    cdef address_t ask_python(self, bytes_t size, device_t device, stream_t stream) except? 0:
        try:
            address = self.callables["alloc"](size, device, stream)
            return 0 if address is None else read_address(address)
        except MemoryError as error:
            ledger_refused(&self.plug.ledger, device)
            raise OutOfMemoryError(self.facts(size, device, stream)) from error
        except Exception as error:
            raise failed_function("alloc", error) from error

    cdef int hand_back(self, address_t address, bytes_t size, device_t device, stream_t stream) except -1:
        cdef free_t function = self.plug.functions.free
        if function != NULL:
            with nogil:
                function(<void*> address, size, device, <void*> stream)
        else:
            self.call("free", (address, size, device, stream))
        return 0

    cdef object facts(self, object size, device_t device, stream_t stream):
        cdef Stats stats
        device_free, device_total = 0, 0
        ledger_stats(&self.plug.ledger, device, &stats)
        try:
            device_free, device_total = self.memory_info()
        except DeviceError:
            pass    # a device that reports nothing must not hide that memory is out
        nested = stats_nested(&stats)
        return OutOfMemoryFacts(
            device=self.device.name, device_index=device, requested=size, rounded=size, segment_size=size,
            device_free=device_free, device_total=device_total, limit=None,
            allocated=nested["allocated_bytes"]["all"]["current"],
            reserved=nested["reserved_bytes"]["all"]["current"], private_free=0, largest_free=0, stream=stream)


clear_weak_references_first(PluggedMemory)


cdef object unknown_pointer(object address):
    return AddressError(
        f"Trying to free a pointer not allocated here: {address:#x} was never handed out by this allocator, "
        "or has been freed", address)


cdef object failed_function(str name, object error):
    text = str(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return DeviceError(f"the {name} function of a pluggable allocator failed: {said}", operation=name)
