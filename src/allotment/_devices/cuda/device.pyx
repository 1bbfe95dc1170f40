"""A device of the CUDA driver: the filled-in table, and operations beyond the contract."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uintptr_t

from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport DEVICE_ERROR, OK, Device, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, device_t, event_t, stream_t
from allotment._core.tools.arguments cimport read_arguments, read_byte_count, read_device_index
from allotment._devices.cuda.capture cimport CudaWork, count_nodes, fill_capture, instantiate
from allotment._devices.cuda.context cimport CudaContext, Visit, enter, leave, open_context
from allotment._devices.cuda.driver cimport (
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_STREAM_WAIT_VALUE_GEQ, CUDA_SUCCESS, CUdevice_attribute, CUresult, CUuuid, driver, forget_words,
    is_forked, last_error_text, status_of)
from allotment._devices.cuda.memory cimport fill_memory, register_memory, unregister_memory
from allotment._devices.cuda.pool cimport fill_pool
from allotment._devices.cuda.streams cimport driver_stream, fill_streams, is_parked, refuse_parked
from allotment._devices.graphs cimport end_capture_into

from allotment._devices.cuda import nvml
from allotment._devices.graphs import begin_capture

cdef extern from *:
    """
    #define allotment_store(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
    """
    void store "allotment_store"(uint32_t* word, uint32_t value) noexcept nogil

cdef enum:
    PAGE_SIZE = 4096


cdef status_t clear_error(void* self) noexcept nogil:
    # Unlike the CUDA runtime, the driver keeps no last error that the package would have to clear.
    forget_words()
    return OK


cdef size_t describe(void* self, char* text, size_t capacity) noexcept nogil:
    return last_error_text(text, capacity)


cdef class CudaDevice(Device):
    """CudaDevice(index=0)\n--\n
    A GPU behind the CUDA driver, by index; in reports it is "cuda:0".

    Opens the driver here, not when the package is imported. Works in the device's primary context, which PyTorch, CuPy
    and the CUDA runtime share.

    Raises DeviceError if there is no usable driver or no such device, and in a process that was forked after CUDA was
    initialized. Every property and method raises DeviceError if the driver fails.

    Safe to use from several threads; the device need not be the thread's current one.
    """

    _runs_by_itself = True      # see allotment/_devices/streams.pyx

    def __cinit__(self, *args, **kwargs):
        cdef device_t index = read_device_index(read_arguments(CudaDevice, args, kwargs)["index"], self)
        self.family = "cuda"
        self.name = f"cuda:{index}"
        self.backend.context = open_context(index)
        self.table.device = index
        self.table.self = &self.backend
        self.table.clear_error = clear_error
        self.table.describe = describe
        fill_streams(&self.table)
        fill_capture(&self.table)
        fill_memory(self, &self.backend)
        fill_pool(&self.table, &self.backend)

    @cython.embedsignature(False)    # the class has it
    def __init__(self, index: int = 0):
        pass    # `__cinit__` has read it, so that every object is complete

    cdef int check(self, status_t status, str operation) except -1:
        return check_status(self, status, operation)

    # Identity.

    @property
    def model(self) -> str:
        """Product name."""
        cdef char[256] text
        cdef CUresult result = driver.cuDeviceGetName(text, sizeof(text), self.backend.context.device)
        self.check(status_of(result, b"cuDeviceGetName"), "model")
        return (<bytes> <char*> text).decode()

    @property
    def uuid(self) -> str:
        """ "GPU-" and the device's UUID."""
        cdef CUuuid found
        cdef CUresult result = driver.cuDeviceGetUuid_v2(&found, self.backend.context.device)
        self.check(status_of(result, b"cuDeviceGetUuid"), "uuid")
        digits = found.bytes[:16].hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    @property
    def pci_bus_id(self) -> str:
        """PCI address of the device: "0000:1b:00.0"."""
        cdef char[32] text
        cdef CUresult result = driver.cuDeviceGetPCIBusId(text, sizeof(text), self.backend.context.device)
        self.check(status_of(result, b"cuDeviceGetPCIBusId"), "pci_bus_id")
        return (<bytes> <char*> text).decode()

    @property
    def total_memory(self) -> int:
        """Bytes of memory that the device has."""
        cdef size_t size = 0
        cdef CUresult result = driver.cuDeviceTotalMem_v2(&size, self.backend.context.device)
        self.check(status_of(result, b"cuDeviceTotalMem"), "total_memory")
        return size

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor) version of the architecture."""
        return (self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))

    def attribute(self, CUdevice_attribute number) -> int:
        """Return a device attribute of the driver, by its number (CUdevice_attribute)."""
        cdef int value = 0
        cdef CUresult result = driver.cuDeviceGetAttribute(&value, number, self.backend.context.device)
        self.check(status_of(result, b"cuDeviceGetAttribute"), "attribute")
        return value

    def processes(self) -> list[tuple[int, int]]:
        """Return (process id, bytes) of every process with memory on the device; empty if unknown."""
        return nvml.processes(self.pci_bus_id)

    # Streams and captures.

    def create_stream(self) -> int:
        """Create a stream that does not wait for the default stream."""
        cdef stream_t stream = 0
        cdef status_t status
        with nogil:
            status = self.table.stream_create(self.table.self, &stream)
        self.check(status, "stream_create")
        return stream

    def destroy_stream(self, stream_t stream) -> None:
        """Destroy a stream. Its unfinished work goes on; later uses of its handle fail."""
        cdef status_t status
        with nogil:
            status = self.table.stream_destroy(self.table.self, stream)
        self.check(status, "stream_destroy")

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for all work on a stream, or on the device."""
        cdef stream_t number = 0 if stream is None else stream
        cdef bint is_whole_device = stream is None
        cdef status_t status
        with nogil:
            if is_whole_device:
                status = self.table.device_synchronize(self.table.self)
            else:
                status = self.table.stream_synchronize(self.table.self, number)
        self.check(status, "device_synchronize" if is_whole_device else "stream_synchronize")

    def wait(self, stream_t stream, stream_t on) -> None:
        """Make later work of `stream` wait for the current work of `on`; `stream` joins the capture that `on` is in."""
        cdef event_t event = 0
        cdef status_t status
        with nogil:
            status = self.table.event_create(self.table.self, &event)
            if status == OK:
                status = self.table.event_record(self.table.self, event, on)
                if status == OK:
                    status = self.table.stream_wait(self.table.self, stream, event)
                # The driver keeps the dependency without the event.
                self.table.event_destroy(self.table.self, event)
        self.check(status, "stream_wait")

    def begin_capture(self, stream_t stream) -> int:
        """Start a capture: work on the stream becomes nodes of a graph from now on. Returns the capture's id."""
        return begin_capture(self, stream)

    def end_capture(self, stream_t stream) -> CudaGraph:
        """End the capture that began on the stream. Raises DeviceError if it was invalidated."""
        return end_capture_into(CudaGraph.__new__(CudaGraph), self, stream)

    def capture_of(self, stream_t stream) -> int:
        """Return the id of the capture that the stream is in, 0 if none."""
        cdef capture_t capture = 0
        cdef status_t status
        with nogil:
            status = self.table.capture_status(self.table.self, stream, &capture)
        self.check(status, "capture_status")
        return capture

    # Work that needs no kernel.

    def memset_async(self, address_t address, unsigned char value, bytes_t size, stream_t stream=0) -> None:
        """Set `size` bytes to `value`, in stream order."""
        cdef status_t status
        with nogil:
            status = memset_on(self.backend.context, address, value, size, stream)
        self.check(status, "memset_async")

    def write_value(self, stream_t stream, address_t address, uint32_t value) -> None:
        """Write a 32-bit value, in stream order."""
        cdef status_t status
        with nogil:
            status = write_value_on(self.backend.context, address, value, stream)
        self.check(status, "write_value")

    def wait_value(self, stream_t stream, address_t address, uint32_t value) -> None:
        """Make the stream wait until the 32-bit value at `address` is at least `value`."""
        cdef status_t status
        with nogil:
            status = wait_value_on(self.backend.context, address, value, stream)
        self.check(status, "wait_value")

    def hold(self, stream_t stream) -> CudaHold:
        """Keep the stream busy until released."""
        cdef CudaHold hold = CudaHold.__new__(CudaHold)
        hold.word = self.next_word()
        hold.stream = stream
        self.wait_value(stream, <address_t> <uintptr_t> hold.word, 1)
        return hold

    cdef uint32_t* next_word(self) except NULL:
        cdef address_t page = 0
        cdef status_t status
        if self.words_left == 0:
            with nogil:
                status = self.table.pinned_allocate(self.table.self, PAGE_SIZE, &page)
            self.check(status, "pinned_allocate")
            self.words = <uint32_t*> <uintptr_t> page
            self.words_left = PAGE_SIZE // sizeof(uint32_t)
        self.words_left -= 1
        store(&self.words[self.words_left], 0)
        return &self.words[self.words_left]

    # Pinned memory of this process.

    def register_host(self, address_t address, bytes_t size) -> None:
        """Pin memory of this process in place, for every device. Raises DeviceError."""
        cdef status_t status
        with nogil:
            status = register_memory(self.backend.context, address, size)
        self.check(status, "register_host")

    def unregister_host(self, address_t address) -> None:
        """Undo `register_host`. Raises DeviceError."""
        cdef status_t status
        with nogil:
            status = unregister_memory(self.backend.context, address)
        self.check(status, "unregister_host")

    # Memory contents.

    def copy_from_host(self, address_t address, data: ReadableBuffer) -> None:
        """Copy bytes to the device, and wait for the copy."""
        cdef const unsigned char[::1] source = memoryview(data).cast("B")
        cdef size_t size = source.shape[0]
        cdef status_t status = OK
        if size > 0:
            with nogil:
                status = copy_in(self.backend.context, address, &source[0], size)
        self.check(status, "copy_from_host")

    def copy_to_host(self, address_t address, size: int) -> bytes:
        """Copy bytes from the device; does not wait for streams created here."""
        cdef bytes_t count = read_byte_count(size)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, count)
        cdef char* target = PyBytes_AS_STRING(data)
        cdef status_t status
        with nogil:
            status = copy_out(self.backend.context, target, address, count)
        self.check(status, "copy_to_host")
        return data


cdef status_t memset_on(CudaContext* context, address_t address, unsigned char value, bytes_t size,
                        stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context, stream):
        return refuse_parked()
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemsetD8Async", driver.cuMemsetD8Async(address, value, size, driver_stream(stream)))


cdef status_t write_value_on(CudaContext* context, address_t address, uint32_t value,
                             stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context, stream):
        return refuse_parked()
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuStreamWriteValue32",
                 driver.cuStreamWriteValue32_v2(driver_stream(stream), address, value, 0))


cdef status_t wait_value_on(CudaContext* context, address_t address, uint32_t value,
                            stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context, stream):
        return refuse_parked()
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuStreamWaitValue32",
                 driver.cuStreamWaitValue32_v2(driver_stream(stream), address, value, CU_STREAM_WAIT_VALUE_GEQ))


cdef status_t copy_in(CudaContext* context, address_t address, const void* source, size_t size) noexcept nogil:
    """Return when the copy is done: with pageable memory, the driver's copy call returns before the device write."""
    cdef Visit visit
    cdef CUresult result
    if not enter(context, &visit):
        return DEVICE_ERROR
    result = driver.cuMemcpyHtoD_v2(address, source, size)
    if result != CUDA_SUCCESS:
        return leave(&visit, b"cuMemcpyHtoD", result)
    return leave(&visit, b"cuStreamSynchronize", driver.cuStreamSynchronize(NULL))


cdef status_t copy_out(CudaContext* context, void* target, address_t address, size_t size) noexcept nogil:
    cdef Visit visit
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemcpyDtoH", driver.cuMemcpyDtoH_v2(target, address, size))


cdef class CudaHold:
    """Keeps a stream busy until `release`, the end of its `with` block, or its deletion."""

    def release(self) -> None:
        """Let the stream continue. A second call does nothing."""
        release_hold(self.word)

    def __enter__(self) -> CudaHold:
        return self

    def __exit__(self, *exception) -> None:
        release_hold(self.word)

    def __dealloc__(self):
        release_hold(self.word)


cdef void release_hold(uint32_t* word) noexcept nogil:
    # A forked process does not have the pinned memory, but may collect objects of its parent.
    if word != NULL and not is_forked():
        store(word, 1)


cdef class CudaGraph(DeviceGraph):
    """CudaGraph()\n--\n
    Work recorded by a capture on a CUDA device; it may be replayed any number of times.
    """

    @property
    def node_count(self) -> int:
        """Number of nodes of the graph."""
        cdef CudaWork* work = <CudaWork*> self.living("node_count")
        cdef CudaContext* context = (<CudaDevice> self.device).backend.context
        cdef size_t count = 0
        cdef status_t status
        with nogil:
            status = count_nodes(context, work, &count)
        check_status(self.device, status, "node_count")
        return count

    def instantiate(self) -> None:
        """Prepare the graph for replay. Otherwise the first `replay` does so, and takes much longer."""
        cdef CudaWork* work = <CudaWork*> self.living("instantiate")
        cdef CudaContext* context = (<CudaDevice> self.device).backend.context
        cdef status_t status
        with nogil:
            status = instantiate(context, work)
        check_status(self.device, status, "instantiate")
