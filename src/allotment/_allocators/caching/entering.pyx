from allotment._core.engine cimport engine_enter, engine_is_inside
from allotment._core.model.model cimport Engine


cdef bint enter_slowly(Engine* engine) noexcept nogil:
    if engine_is_inside(engine):
        return False
    engine_enter(engine)
    return True
