"""The way into the engine for C code, which may or may not hold the interpreter lock."""

from allotment._core.engine cimport engine_try_enter
from allotment._core.model.model cimport Engine

cdef bint enter_slowly(Engine* engine) noexcept nogil


cdef inline bint enter_once(Engine* engine) noexcept nogil:
    """Whether this thread is inside now; not, if it was already. Who holds the interpreter lock lets it go to wait."""
    return engine_try_enter(engine) or enter_slowly(engine)
