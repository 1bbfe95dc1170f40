from allotment._core.model.model cimport Engine
from allotment._core.tools.interpreter cimport let_interpreter_go, take_interpreter_back
from allotment._core.tools.lock cimport lock_lend, lock_reclaim


cdef unlocked_t begin_unlocked(Engine* engine) noexcept nogil:
    lock_lend(&engine.lock)
    return let_interpreter_go()


cdef void end_unlocked(Engine* engine, unlocked_t unlocked) noexcept nogil:
    lock_reclaim(&engine.lock)
    take_interpreter_back(unlocked)
