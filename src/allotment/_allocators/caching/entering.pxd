"""Lets C code enter the engine, whether it holds the interpreter lock or not."""

from allotment._core.engine cimport engine_try_enter
from allotment._core.model.model cimport Engine

cdef bint enter_slowly(Engine* engine) noexcept nogil


cdef inline bint enter_once(Engine* engine) noexcept nogil:
    """Enter; return False if this thread was already inside. A caller with the interpreter lock releases it to wait."""
    return engine_try_enter(engine) or enter_slowly(engine)
