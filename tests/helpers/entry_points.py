"""`EntryPoints` of entry.pxd, as C code sees it."""

import ctypes

from allotment._allocators.caching.entry_points import entry_points_address

Context, Memory, Stream = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
Filter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
Drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PoolCall = ctypes.CFUNCTYPE(ctypes.c_int, Context, ctypes.c_uint64, ctypes.c_uint64)


class Shortage(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        *[
            (name, ctypes.c_uint64)
            for name in ("requested", "stream", "device_free", "device_total", "reserved", "allocated", "waiting")
        ],
    ]


Step = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Shortage))


class Table(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("context", Context),
        ("allocate_", ctypes.CFUNCTYPE(Memory, Context, ctypes.c_size_t, ctypes.c_int, Stream)),
        ("free_", ctypes.CFUNCTYPE(ctypes.c_int, Context, Memory, ctypes.c_size_t, ctypes.c_int, Stream)),
        ("record_stream_", ctypes.CFUNCTYPE(ctypes.c_int, Context, Memory, Stream)),
        ("empty_cache_", ctypes.CFUNCTYPE(ctypes.c_int, Context)),
        ("base_allocation_", ctypes.CFUNCTYPE(Memory, Context, Memory, ctypes.POINTER(ctypes.c_size_t))),
        ("set_memory_fraction_", ctypes.CFUNCTYPE(ctypes.c_int, Context, ctypes.c_double, ctypes.c_int)),
        ("last_error_", ctypes.CFUNCTYPE(ctypes.c_size_t, Context, ctypes.c_char_p, ctypes.c_size_t)),
        (
            "begin_allocate_to_pool_",
            ctypes.CFUNCTYPE(
                ctypes.c_int, Context, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, Context
            ),
        ),
        ("end_allocate_to_pool_", PoolCall),
        ("release_pool_", PoolCall),
        ("on_out_of_memory_", ctypes.CFUNCTYPE(ctypes.c_int, Context, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)),
        ("remove_step_", ctypes.CFUNCTYPE(ctypes.c_int, Context, ctypes.c_int)),
    ]

    def allocate(self, size, stream=0):
        """None where C gets NULL."""
        return self.allocate_(self.context, size, 0, stream)

    def free(self, address):
        return self.free_(self.context, address, 0, 0, 0)

    def last_error(self, capacity=256):
        text = ctypes.create_string_buffer(capacity)
        length = self.last_error_(self.context, text, capacity)
        return text.raw[:length].decode()

    def begin_allocate_to_pool(self, pool, accepts=None, drop=None, argument=None):
        """`accepts` and `drop` are a Filter and a Drop that the caller keeps."""
        function, done = (ctypes.cast(given, ctypes.c_void_p) if given else None for given in (accepts, drop))
        return self.begin_allocate_to_pool_(self.context, *pool, function, done, argument)

    def end_allocate_to_pool(self, pool):
        return self.end_allocate_to_pool_(self.context, *pool)

    def on_out_of_memory(self, step, tries=1):
        """`step` is a Step that the caller keeps."""
        return self.on_out_of_memory_(self.context, ctypes.cast(step, ctypes.c_void_p), None, tries)

    def remove_step(self, number):
        return self.remove_step_(self.context, number)

    def release_pool(self, pool):
        return self.release_pool_(self.context, *pool)


def table_of(owner):
    """Return the table of an allocator or a tenant."""
    return Table.from_address(entry_points_address(owner))
