from allotment._core.model.model cimport Engine
from allotment._core.tools.interpreter cimport let_interpreter_go, take_interpreter_back
from allotment._core.tools.lock cimport lock_lend, lock_reclaim


cdef outing_t step_out(Engine* engine) noexcept nogil:
    lock_lend(&engine.lock)
    return let_interpreter_go()


cdef void step_in(Engine* engine, outing_t outing) noexcept nogil:
    lock_reclaim(&engine.lock)
    take_interpreter_back(outing)
