from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

from allotment.core.tenants cimport STACK_MOST, stack_of
from allotment.core.trace cimport trace_set_compile_context, trace_set_metadata

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030B0000
    #error "Python 3.11 or newer is needed"
    #endif
    #define allotment_frame_code(frame) ((PyObject*) PyFrame_GetCode(frame))
    #define allotment_code_line(code, offset) PyCode_Addr2Line((PyCodeObject*) (code), offset)
    """
    ctypedef struct PyFrameObject
    PyFrameObject* PyEval_GetFrame()
    PyFrameObject* PyFrame_GetBack(PyFrameObject* frame)
    object frame_code "allotment_frame_code"(PyFrameObject* frame)
    int PyFrame_GetLasti(PyFrameObject* frame)
    int code_line "allotment_code_line"(object code, int offset)
    void Py_XDECREF(PyFrameObject* frame)
    void Py_XINCREF(PyFrameObject* frame)

cdef enum:
    DEEPEST = 256

cdef list stacks = [()]             # number -> tuple of (code, offset), innermost first
cdef dict stack_numbers = {}        # packed addresses and offsets -> number
cdef dict rendered = {}              # number -> frames, once somebody has looked
cdef list names = [""]
cdef dict name_numbers = {"": 0}


cdef uint32_t capture_stack() except? 0xFFFFFFFF:
    """The number of the calling thread's Python stack; at most the innermost 256 frames of it."""
    cdef uint64_t packed[2 * DEEPEST]
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyFrameObject* outer
    cdef list codes = []
    cdef int depth = 0
    Py_XINCREF(frame)
    while frame != NULL and depth < DEEPEST:
        code = frame_code(frame)
        codes.append(code)
        packed[2 * depth] = <uint64_t> <void*> code
        packed[2 * depth + 1] = <uint64_t> PyFrame_GetLasti(frame)
        depth += 1
        outer = PyFrame_GetBack(frame)
        Py_XDECREF(frame)
        frame = outer
    Py_XDECREF(frame)
    if depth == 0:
        return 0
    key = PyBytes_FromStringAndSize(<char*> packed, 2 * depth * sizeof(uint64_t))
    number = stack_numbers.get(key)
    if number is None:
        if len(stacks) > STACK_MOST:
            return 0
        # The code objects are kept, so that their addresses stay theirs.
        stacks.append(tuple([(codes[i], <int> packed[2 * i + 1]) for i in range(depth)]))
        number = stack_numbers[key] = len(stacks) - 1
    return number


cdef list stack_frames(uint32_t stack):
    """The frames of a stack as snapshots show them, innermost first; the list is the caller's, frames are shared."""
    stack = stack_of(stack)
    frames = rendered.get(stack)
    if frames is None:
        frames = rendered[stack] = [
            {"name": code.co_name, "filename": code.co_filename, "line": code_line(code, offset)}
            for code, offset in stacks[stack]
        ]
    return list(frames)


cdef uint32_t intern_name(str name) except? 0xFFFFFFFF:
    number = name_numbers.get(name)
    if number is None:
        names.append(name)
        number = name_numbers[name] = len(names) - 1
    return number


cdef str name_of(uint32_t number):
    return names[number]


def set_user_metadata(text: str) -> None:
    """Attach `text` to everything the calling thread records from now on; "" attaches nothing."""
    trace_set_metadata(intern_name(text))


def get_user_metadata() -> str:
    cdef uint32_t number = trace_set_metadata(0)
    trace_set_metadata(number)
    return names[number]


cdef object compile_contexts = __import__("threading").local()


def push_compile_context(name: str) -> None:
    """Name what the calling thread compiles from now on."""
    cdef uint32_t before = trace_set_compile_context(intern_name(name))
    if not hasattr(compile_contexts, "below"):
        compile_contexts.below = []
    compile_contexts.below.append(before)


def pop_compile_context() -> None:
    """Return to the name before the last push; without one, nothing happens."""
    cdef list below = getattr(compile_contexts, "below", None)
    if below:
        trace_set_compile_context(below.pop())
