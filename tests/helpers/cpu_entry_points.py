"""The table of C functions of `allotment.cpu`, as C code sees it."""

import ctypes


class EntryPoints(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("ctx", ctypes.c_void_p),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
        ("free", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)),
        ("record_free", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)),
        ("take_error", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    ]


OK, OUT_OF_MEMORY, NOT_ALLOCATED, ALREADY_FREE = range(4)


def table_of(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return EntryPoints.from_address(get(capsule, b"allotment.cpu.EntryPoints"))
