"""The table of C functions of `allotment.cpu`, as C code sees it."""

import ctypes

Context, Memory = ctypes.c_void_p, ctypes.c_void_p


class EntryPoints(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("context", Context),
        ("allocate_", ctypes.CFUNCTYPE(Memory, Context, ctypes.c_size_t)),
        ("free_", ctypes.CFUNCTYPE(ctypes.c_int, Context, Memory)),
        ("record_free_", ctypes.CFUNCTYPE(ctypes.c_int, Context, Memory)),
        ("last_error_", ctypes.CFUNCTYPE(ctypes.c_size_t, Context, ctypes.c_char_p, ctypes.c_size_t)),
    ]

    def allocate(self, size):
        return self.allocate_(self.context, size)

    def free(self, address):
        return self.free_(self.context, address)

    def record_free(self, address):
        return self.record_free_(self.context, address)

    def last_error(self, capacity=100):
        text = ctypes.create_string_buffer(capacity)
        length = self.last_error_(self.context, text, capacity)
        return text.raw[:length].decode()


def table_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return EntryPoints.from_address(get(capsule, b"allotment.cpu.entry_points"))
