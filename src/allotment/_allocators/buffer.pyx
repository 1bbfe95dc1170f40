cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._allocators.base cimport AllocatorBase, require_extent
from allotment._allocators.host_cache.host_memory cimport HostMemory
from allotment._core.contract.table cimport IS_HOST
from allotment._core.contract.types cimport address_t
from allotment._core.tools.arguments cimport read_address, read_arguments, read_byte_count, refuse_pickling
from allotment._core.tools.critical_section cimport Section, section_begin, section_end
from allotment._core.tools.interpreter cimport interpreter_ends

import operator

from allotment._sharing.pickling import hold_of_pickles
from allotment.errors import AddressError, RequestError, UnsupportedError

cdef extern from *:
    """
    /* The exchange format of dlpack.h, without and with a version: the names are ours, the layout is fixed. */
    typedef struct { int32_t type; int32_t index; } AllotmentDLDevice;
    typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } AllotmentDLType;
    typedef struct {
        void* data; AllotmentDLDevice device; int32_t dimensions; AllotmentDLType type;
        int64_t* shape; int64_t* strides; uint64_t byte_offset;
    } AllotmentDLTensor;
    typedef struct AllotmentDLManaged {
        AllotmentDLTensor tensor; void* owner; void (*deleter)(struct AllotmentDLManaged*);
    } AllotmentDLManaged;
    typedef struct AllotmentDLVersioned {
        uint32_t major, minor; void* owner; void (*deleter)(struct AllotmentDLVersioned*); uint64_t flags;
        AllotmentDLTensor tensor;
    } AllotmentDLVersioned;
    """
    ctypedef struct DLDevice "AllotmentDLDevice":
        int32_t type, index
    ctypedef struct DLType "AllotmentDLType":
        uint8_t code, bits
        uint16_t lanes
    ctypedef struct DLTensor "AllotmentDLTensor":
        void* data
        DLDevice device
        int32_t dimensions
        DLType type
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset
    ctypedef struct DLManaged "AllotmentDLManaged":
        DLTensor tensor
        void* owner
        void (*deleter)(DLManaged*) noexcept

    ctypedef struct DLVersioned "AllotmentDLVersioned":
        uint32_t major, minor
        void* owner
        void (*deleter)(DLVersioned*) noexcept
        uint64_t flags
        DLTensor tensor

cdef enum:
    DL_CPU = 1
    DL_CUDA = 2
    DL_UNSIGNED = 1


cdef struct Exported:
    # Either form first, so that a pointer to it is a pointer to this.
    DLManaged managed
    int64_t shape[1]


cdef struct ExportedVersioned:
    DLVersioned managed
    int64_t shape[1]


cdef void drop_exported(DLManaged* managed) noexcept with gil:
    (<Buffer> managed.owner).drop_view()
    Py_DECREF(<object> managed.owner)
    free(managed)


cdef void drop_versioned(DLVersioned* managed) noexcept with gil:
    (<Buffer> managed.owner).drop_view()
    Py_DECREF(<object> managed.owner)
    free(managed)


cdef void drop_capsule(object capsule) noexcept:
    """Free the tensor of a capsule that no consumer took. A consumer renames a capsule when it takes it."""
    if PyCapsule_IsValid(capsule, b"dltensor"):
        drop_exported(<DLManaged*> PyCapsule_GetPointer(capsule, b"dltensor"))
    elif PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        drop_versioned(<DLVersioned*> PyCapsule_GetPointer(capsule, b"dltensor_versioned"))


cdef void describe(DLTensor* tensor, Buffer buffer, int kind, int index, int64_t* shape) noexcept:
    shape[0] = buffer.size
    tensor.data = <void*> buffer.address
    tensor.device.type = kind
    tensor.device.index = index
    tensor.dimensions = 1
    tensor.type.code = DL_UNSIGNED
    tensor.type.bits = 8
    tensor.type.lanes = 1
    tensor.shape = shape


cdef bint takes_versions(object max_version) except -1:
    """Whether the consumer can read a capsule with a version."""
    if max_version is None:
        return False
    try:
        major, _ = max_version
        return operator.index(major) >= 1
    except (TypeError, ValueError):
        raise TypeError(f"max_version is (major, minor) or None, not {max_version!r}") from None


@cython.no_gc_clear     # a garbage collection must not clear the allocator before the memory has returned to it
cdef class Buffer:
    """Buffer(allocator, address, size, stream=0)\n--\n
    A block of an allocator, freed when the last reference to it goes; `Allocator.empty` makes one.

    Other libraries see it without a copy, as bytes: through the buffer protocol and `numpy.asarray` (host memory),
    DLPack (host and CUDA), and `__cuda_array_interface__` (CUDA). Consumers that got it that way keep it alive. Its
    free is stream-ordered like any other. `with buffer:` closes it at the end of the block; `buffer[start:stop]` is a
    part of it that keeps it alive.
    """

    def __cinit__(self, *args, **kwargs):
        # Allocators pass all of them in order.
        allocator, address, size, stream = (
            args if len(args) == 4 and not kwargs else read_arguments(Buffer, args, kwargs).values())
        self.allocator = allocator
        self.size = read_byte_count(size)
        self.stream = stream
        self.take_over(read_address(address))

    cdef int take_over(self, address_t address) except -1:
        """Own the block at an address from now on; its previous owner no longer does."""
        if not callable(getattr(self.allocator, "free", None)):
            raise TypeError(f"a Buffer needs an allocator that frees it, not {type(self.allocator).__name__}")
        if address == 0 and self.size != 0:
            raise AddressError(
                f"a Buffer of {self.size} bytes needs the address of a block, which is never 0", 0)
        if address != 0 and isinstance(self.allocator, HostMemory):
            (<HostMemory> self.allocator).adopt(address, self.size)
        if address != 0 and isinstance(self.allocator, AllocatorBase):
            require_extent(self.allocator, address, self.size)
            self.owners = (<AllocatorBase> self.allocator).owners
            if self.owners is not None:
                self.owners.reserve(1)
                self.owners.put(address, self)
        self.address = address
        return 0

    cdef bint has_block(self) noexcept:
        """Whether the block still belongs to the buffer: restoring a pool ends blocks."""
        cdef Buffer whole
        with cython.critical_section(self):
            whole = self.whole
        if whole is not None:
            return whole.has_block()
        return self.owners is None or self.owners.is_owner(self.address, <void*> self)

    @cython.embedsignature(False)    # the class has it
    def __init__(self, allocator: DeviceAllocator | HostMemory, address: int, size: int, stream: Stream | int = 0):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __reduce__(self):
        hold = hold_of_pickles()
        if hold is not None:
            from allotment._allocators.opened import shared_form

            return shared_form(self, hold)
        return refuse_pickling(
            self, "its memory belongs to this process; send its contents, bytes(buffer), or share it: see "
            "allotment.multiprocessing")

    def __del__(self):
        cdef Section section
        cdef bint unused
        section_begin(&section, self)
        # A finalizer that ran before this one may have kept a reference: then the buffer exists, and its memory does
        # not.
        self.finalized = self.closed = True
        unused = self.views == 0    # in a garbage cycle, finalizers that run later may still use a view
        section_end(&section)
        if unused:
            self.release()

    cdef int release(self) except -1:
        """Give up the memory. pre: closed, and nothing uses it"""
        cdef Section section
        cdef address_t address
        cdef Buffer whole
        section_begin(&section, self)
        address, self.address = self.address, 0
        whole, self.whole = self.whole, None
        section_end(&section)
        if whole is not None:
            whole.drop_view()
        elif address != 0:
            if interpreter_ends():
                self.give_back_at_the_end(address)
            else:
                self.free_block(address)
        return 0

    cdef void give_back_at_the_end(self, address_t address) noexcept:
        """Free as much as is possible without modules that are gone; the end of the process does the rest."""
        try:
            self.free_block(address)
        except Exception:
            pass

    cdef int free_block(self, address_t address) except -1:
        """Free the block, unless it has another owner by now."""
        if self.owners is not None:
            (<AllocatorBase> self.allocator).free_owned(address, <void*> self)
        else:
            self.allocator.free(address)
        return 0

    def __enter__(self) -> Buffer:
        self.check_block()
        return self

    def __exit__(self, kind, error, traceback):
        self.close()

    def close(self) -> None:
        """Free the block now, in stream order, instead of with the last reference. A second call does nothing.

        A slice drops its reference to the buffer of which it is a part. Raises BufferError while arrays, DLPack
        capsules or slices use the memory (`__cuda_array_interface__` leaves no trace, so its consumers are not known).
        """
        self.end()

    cdef bint end(self) except -1:
        """`close`; False if it is closed already."""
        cdef Section section
        cdef bint closed
        cdef size_t views
        section_begin(&section, self)
        closed, views = self.closed, self.views
        if views == 0:
            self.closed = True
        section_end(&section)
        if closed:
            return False
        if views != 0:
            raise BufferError(
                f"{self!r} cannot be closed: {views} arrays, DLPack capsules or slices use its memory; drop them first")
        self.release()
        return True

    @cython.critical_section
    cdef int add_view(self) except -1:
        """One view more: the buffer keeps its memory until `drop_view`. Raises unless it has memory."""
        self.check_block()
        self.views += 1
        return 0

    cdef void drop_view(self) noexcept:
        cdef Section section
        cdef bint released
        section_begin(&section, self)
        self.views -= 1
        released = self.views == 0 and self.finalized
        section_end(&section)
        if released:
            self.release()

    @property
    def closed(self) -> bool:
        """Whether it was closed, and so has no memory."""
        return self.closed

    def __getitem__(self, part: slice) -> Buffer:
        """Return the bytes from `start` to `stop` as a buffer that keeps this one's block alive.

        Raises TypeError for a single index (`memoryview(buffer)` reads bytes), ValueError for a step.
        """
        cdef Buffer piece, whole
        self.check_block()
        if not isinstance(part, slice):
            raise TypeError("a Buffer takes slices, buffer[start:stop]; read single bytes through memoryview(buffer)")
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError(f"a slice of a Buffer cannot have a step of {step}; view it as an array instead")
        piece = Buffer(self.allocator, 0, 0, self.stream)
        piece.size = max(stop - start, 0)
        with cython.critical_section(self):
            self.check_block()      # another thread may have closed it
            whole = self if self.whole is None else self.whole
            piece.address = self.address + <address_t> start
            whole.add_view()
            piece.whole = whole
        return piece

    def __len__(self) -> int:
        if self.size > <bytes_t> INT64_MAX:
            raise OverflowError(f"{self!r} has more bytes than a Python length can express; use its `size`")
        return self.size

    def __repr__(self):
        stream = f"{self.stream:#x}" if isinstance(self.stream, int) else repr(self.stream)
        where = "closed," if self.closed else f"at {self.address:#x}"
        return f"<Buffer of {self.size} bytes {where} on {self.device_name()}, stream {stream}>"

    @property
    def allocator(self) -> DeviceAllocator | HostMemory:
        """Allocator that owns the block, to which the block returns."""
        return self.allocator

    @property
    def address(self) -> int:
        """Start of the memory; 0 for a buffer of 0 bytes.

        Raises RequestError if the buffer is closed, or if its block has ended because its pool was restored to a state
        without that block.
        """
        cdef Section section
        cdef address_t address
        section_begin(&section, self)
        address = self.address      # first: if another thread closes the buffer after this, `check_block` raises
        section_end(&section)
        self.check_block()
        return address

    cdef int check_block(self) except -1:
        """Raise unless it has memory. The last look is at `closed`, after which the thread waits for no other."""
        cdef bint has_block = self.has_block()
        if self.finalized:
            raise RequestError(
                f"{self!r} was freed when its last reference was dropped; a finalizer made a new reference too late")
        if self.closed:
            raise RequestError(f"{self!r} was closed, and no longer has memory")
        if not has_block:
            raise RequestError(
                f"{self!r} no longer has a block: its pool was restored to a state without that block")
        return 0

    @property
    def block(self) -> int:
        """Start of the block that contains the memory; for a slice, of the block of the buffer that it is a part of."""
        cdef Buffer whole
        with cython.critical_section(self):
            self.check_block()
            whole = self if self.whole is None else self.whole
            return whole.address

    @property
    def size(self) -> int:
        """Number of bytes requested."""
        return self.size

    @property
    def stream(self) -> Stream | int:
        """Stream of the request, as the caller passed it."""
        return self.stream

    def record_stream(self, stream: Stream | int) -> None:
        """Declare that work on `stream` uses this memory, so that its free waits for that work.

        Raises StreamError, UnsupportedError for memory of an allocator without streams.
        """
        record = getattr(self.allocator, "record_stream", None)
        if record is None:
            raise UnsupportedError(
                f"{self!r} cannot be recorded for a stream: {type(self.allocator).__name__} does not support streams",
                operation="record_stream")
        record(self.block, stream)

    cdef bint is_host(self) except -1:
        if isinstance(self.allocator, AllocatorBase):
            return (<AllocatorBase> self.allocator).is_readable()
        if isinstance(self.allocator, HostMemory):
            return True
        return getattr(getattr(self.allocator, "device", None), "capabilities", 0) & IS_HOST != 0

    cdef bint is_cuda(self) except -1:
        return getattr(getattr(self.allocator, "device", None), "family", None) == "cuda" and not self.is_host()

    cdef str device_name(self):
        if isinstance(self.allocator, HostMemory):
            return "the host"
        return getattr(getattr(self.allocator, "device", None), "name", "an unknown device")

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.add_view()
        try:
            if not self.is_host():
                raise BufferError(
                    f"memory of {self.device_name()} cannot be read by this process; copy it to host memory first")
            self.check_memory()
            PyBuffer_FillInfo(view, self, <void*> self.address, self.size, False, flags)
        except BaseException:
            self.drop_view()
            raise

    def __releasebuffer__(self, Py_buffer* view):
        self.drop_view()

    cdef int check_memory(self) except -1:
        """Raise unless other code may see the memory, which may have been freed by its address."""
        self.check_block()
        if self.size > <bytes_t> INT64_MAX:
            raise BufferError(f"{self!r} has more bytes than the buffer protocol can express; use a slice of it")
        if self.address != 0 and isinstance(self.allocator, AllocatorBase):
            require_extent(self.allocator, self.address, self.size)
        elif self.address != 0 and isinstance(self.allocator, HostMemory):
            (<HostMemory> self.allocator).require_in_use(self.block, self.size)
        return 0

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kind, index) of the device in DLPack's numbering.

        Raises BufferError for a device unknown to DLPack.
        """
        if self.is_host():
            return DL_CPU, 0
        if self.is_cuda():
            return DL_CUDA, self.allocator.device.index
        raise BufferError(f"DLPack does not support devices like {self.device_name()}: only host and CUDA")

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory as a DLPack capsule, without a copy. Raises BufferError for a copy or another device."""
        self.add_view()
        try:
            kind, index = self.__dlpack_device__()
            self.check_memory()
            if copy or (dl_device is not None and tuple(dl_device) != (kind, index)):
                raise BufferError("DLPack exports a Buffer as it is; a copy or another device is not supported")
            return self.exported(kind, index, takes_versions(max_version))
        except BaseException:
            self.drop_view()
            raise

    cdef object exported(self, int kind, int index, bint with_version):
        """Return the capsule, which keeps a view of this buffer and a reference to it."""
        cdef Exported* exported
        cdef ExportedVersioned* versioned
        if with_version:
            versioned = <ExportedVersioned*> calloc(1, sizeof(ExportedVersioned))
            if versioned == NULL:
                raise MemoryError("the host has no memory for a DLPack record")
            describe(&versioned.managed.tensor, self, kind, index, versioned.shape)
            versioned.managed.major = 1
            versioned.managed.owner = <void*> self
            versioned.managed.deleter = drop_versioned
            Py_INCREF(self)
            return PyCapsule_New(versioned, b"dltensor_versioned", drop_capsule)
        exported = <Exported*> calloc(1, sizeof(Exported))
        if exported == NULL:
            raise MemoryError("the host has no memory for a DLPack record")
        describe(&exported.managed.tensor, self, kind, index, exported.shape)
        exported.managed.owner = <void*> self
        exported.managed.deleter = drop_exported
        Py_INCREF(self)
        return PyCapsule_New(exported, b"dltensor", drop_capsule)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory in the form that other CUDA libraries read. Raises AttributeError unless it is CUDA memory."""
        if not self.is_cuda():
            raise AttributeError(f"memory of {self.device_name()} is not CUDA memory")
        self.check_memory()
        handle = getattr(self.stream, "handle", self.stream)
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            # 0 is not allowed there; 1 means the legacy default stream.
            "stream": handle or 1,
        }


cdef bint free_buffer(object given, object allocator) except -1:
    cdef Buffer buffer
    if not isinstance(given, Buffer):
        return False
    buffer = <Buffer> given
    if buffer.closed:
        raise freed_already(buffer)
    if buffer.allocator is not allocator:
        raise AddressError(f"{buffer!r} belongs to another allocator; free it with buffer.close()", buffer.address)
    if buffer.whole is not None:
        raise AddressError(f"{buffer!r} is a slice; free the buffer of which it is a part", buffer.address)
    if not buffer.end():        # another thread was quicker
        raise freed_already(buffer)
    return True


cdef object freed_already(Buffer buffer):
    return AddressError(f"{buffer!r} was freed already", 0)
