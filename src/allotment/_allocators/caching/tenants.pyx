"""A named user of an allocator that has other users too."""

cimport cython

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.limits cimport Limits
from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport address_t, stream_t
from allotment._core.engine cimport interpreter_lock_suffices
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.model.model cimport Block
from allotment._core.records.tenants cimport tenant_context
from allotment._core.tools.arguments cimport read_arguments, read_block, refuse_pickling


@cython.final
cdef class Tenant:
    """Tenant(allocator, name)\n--\n
    A named user of an allocator that others use too; `Allocator.tenant` makes one.

    `Allocator.tenants` and snapshots report what it allocates under this name. Everything else belongs to the
    allocator: cache, limit, streams. Safe to use from several threads.
    """

    def __cinit__(self, *args, **kwargs):
        allocator, name = read_arguments(Tenant, args, kwargs).values()
        if not isinstance(allocator, Allocator):
            raise TypeError(f"a Tenant needs an Allocator, not {type(allocator).__name__}")
        if not isinstance(name, str):
            raise TypeError(f"the name of a tenant must be a text, not {type(name).__name__}")
        self.allocator = allocator
        self.name = name
        self.context = tenant_context(name)

    @cython.embedsignature(False)    # the class has it
    def __init__(self, allocator: Allocator, name: str):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __reduce__(self):
        return refuse_pickling(self, "its allocator's memory belongs to this process; make a tenant in the other one")

    def __repr__(self):
        return f"<Tenant {self.name!r} of {self.allocator!r}>"

    @property
    def allocator(self) -> Allocator:
        """Allocator whose memory it uses."""
        return self.allocator

    @property
    def name(self) -> str:
        """Name under which its blocks are reported."""
        return self.name

    @property
    def limit(self) -> int | None:
        """The most bytes of blocks in use that it may hold; None means no limit.

        A request that would exceed it raises OutOfMemoryError, whose `facts.limited_by` names the tenant. Set it to
        bytes, to a text such as "2GiB", or to None. Once a tenant of an allocator has had a limit, every request there
        counts what tenants hold.
        """
        return Limits(self.allocator)._tenant_limit(self.name)

    @limit.setter
    def limit(self, limit: int | str | None) -> None:
        Limits(self.allocator)._set_tenant_limit(self.name, limit)

    @cython.binding(False)      # as in Allocator
    @cython.embedsignature.format("clinic")
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """`Allocator.malloc` for this tenant."""
        return self.allocator.allocate(size, stream, 0, self.context)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address: Buffer | int, /) -> None:
        """`Allocator.free`; the block may be another tenant's."""
        self.allocator.free(address)

    def _free_working_on(self, address: int, stream: Stream | int) -> None:
        """`free` for an adapter that knows the caller's current stream, which decides where a graph is captured."""
        cdef address_t given = read_block(address)
        if given != 0:
            self.allocator.free_from_stream(given, self.allocator.stream_handle(stream))

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def _free_on(self, address: int, stream: int, /) -> None:
        """`free` for an adapter whose framework names the stream after which the block ends."""
        cdef address_t given = read_block(address)
        cdef stream_t handle = self.allocator.stream_handle(stream)
        cdef Block* block
        if given == 0:
            return
        if interpreter_lock_suffices(self.allocator.engine):
            block = block_at(self.allocator.engine, given)
            if block != NULL and block.free_list.stream.handle == handle:
                self.allocator.free_from_stream(given, handle)
                return
        self.allocator.record_stream(given, handle)
        self.allocator.free_from_stream(given, handle)

    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """`Allocator.empty` for this tenant."""
        count = whole_size(size)
        if stream is None and self.allocator.is_readable():
            return self.allocator.ready_for(count, None, self.context)
        given = self.allocator.stream_asked(None) if stream is None else stream
        return self.allocator.owned(self.malloc(count, given), count, given)

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """`Allocator.record_stream`."""
        self.allocator.record_stream(block, stream)
