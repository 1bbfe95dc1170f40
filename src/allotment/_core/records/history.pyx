cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from allotment._core.records.tenants cimport FOREIGN_STACK, stack_of
from allotment._core.records.trace cimport trace_set_compile_context, trace_set_metadata
from allotment._core.tools.pointer_map cimport PointerMap, map_get, map_init, map_put, map_reserve

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030B0000
    #error "Python 3.11 or newer is needed"
    #endif
    #define allotment_frame_code(frame) ((PyObject*) PyFrame_GetCode(frame))
    #define allotment_code_line(code, offset) PyCode_Addr2Line((PyCodeObject*) (code), offset)
    """
    ctypedef struct PyObject
    ctypedef struct PyFrameObject
    PyFrameObject* PyEval_GetFrame()
    PyFrameObject* PyFrame_GetBack(PyFrameObject* frame)
    PyObject* frame_code "allotment_frame_code"(PyFrameObject* frame)
    int PyFrame_GetLasti(PyFrameObject* frame)
    int code_line "allotment_code_line"(object code, int offset)
    void Py_DECREF(void* something)
    void Py_XDECREF(void* something)
    void Py_XINCREF(void* something)

cdef enum:
    DEEPEST = 256

cdef struct Place:
    PyObject* code
    int64_t offset

cdef struct Stack:
    # A stack that was captured before, as the key that recognises it: capturing it again creates no Python object.
    Stack* next                 # of equal hash
    uint32_t number
    int depth
    Place places[DEEPEST]       # innermost first; only `depth` of them exist

cdef PointerMap met             # hash -> Stack
cdef list stacks = [()]         # number -> tuple of (code, offset), innermost first
# The critical section of `stacks` guards the map, the list and `given_stacks`. It must be the list's own: to append, a
# thread then does not wait and leave the section, so no other thread gets the same number.
cdef dict rendered = {}         # number -> frames, once somebody has read them
cdef dict given_stacks = {}     # frames of a recorder -> number
cdef object foreign_frames = None
cdef list names = [""]
cdef dict name_numbers = {"": 0}        # its critical section guards both

if not map_init(&met):
    raise MemoryError("the host has no memory for the allocator's own records")


cdef uint32_t capture_stack() except? 0xFFFFFFFF:
    """Return the number of the calling thread's Python stack; at most its innermost 256 frames."""
    cdef Place places[DEEPEST]
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyFrameObject* outer
    cdef PyObject* code
    cdef Stack* stack
    cdef uint64_t hash = 0
    cdef int depth = 0
    Py_XINCREF(frame)
    while frame != NULL and depth < DEEPEST:
        code = frame_code(frame)
        Py_DECREF(code)         # the frame keeps a reference
        places[depth].code = code
        places[depth].offset = PyFrame_GetLasti(frame)
        hash = (hash ^ <uint64_t> code ^ (<uint64_t> places[depth].offset << 48)) * <uint64_t> 11400714819323198485ULL
        hash ^= hash >> 32
        depth += 1
        outer = PyFrame_GetBack(frame)
        Py_DECREF(frame)
        frame = outer
    Py_XDECREF(frame)
    if depth == 0:
        return 0
    hash |= 1                   # keys of the map are not 0
    with cython.critical_section(stacks):
        stack = find_stack(places, depth, hash)
    return stack.number if stack != NULL else remember(places, depth, hash)


cdef Stack* find_stack(const Place* places, int depth, uint64_t hash) noexcept:
    cdef Stack* stack = <Stack*> map_get(&met, hash)
    while stack != NULL and (stack.depth != depth or memcmp(stack.places, places, depth * sizeof(Place)) != 0):
        stack = stack.next
    return stack


cdef uint32_t remember(const Place* places, int depth, uint64_t hash) except? 0xFFFFFFFF:
    """Assign a number to a new stack; 0 when there are too many."""
    cdef Stack* stack
    cdef tuple kept
    cdef int i
    if len(stacks) >= FOREIGN_STACK:
        return 0
    # Keeps the code objects alive, so that their addresses stay unique. A garbage collection here may reenter this
    # function with another stack.
    kept = tuple([(<object> places[i].code, <int> places[i].offset) for i in range(depth)])
    with cython.critical_section(stacks):
        stack = find_stack(places, depth, hash)
        if stack != NULL:           # another thread was here with the same one
            return stack.number
        stack = <Stack*> malloc(sizeof(Stack) - (DEEPEST - depth) * sizeof(Place))
        if stack == NULL or not map_reserve(&met):
            free(stack)
            raise MemoryError("the host has no memory for the allocator's own records")
        stacks.append(kept)
        stack.number = <uint32_t> (len(stacks) - 1)
        stack.depth = depth
        memcpy(stack.places, places, depth * sizeof(Place))
        stack.next = <Stack*> map_get(&met, hash)
        map_put(&met, hash, stack)
    return stack.number


cdef uint32_t intern_frames(object frames) except? 0xFFFFFFFF:
    """Return the number of a stack passed as a snapshot's frames; 0 if it is empty, or if there are too many stacks."""
    cdef tuple given = tuple([
        (str(frame["name"]), str(frame["filename"]), int(frame["line"])) for frame in frames])[:DEEPEST]
    number = given_stacks.get(given, 0)
    if number != 0 or not given:
        return number
    shown = [{"name": name, "filename": filename, "line": line} for name, filename, line in given]
    with cython.critical_section(stacks):
        number = given_stacks.get(given, 0)
        if number == 0 and len(stacks) < FOREIGN_STACK:
            stacks.append(())
            number = len(stacks) - 1
            rendered[number] = shown
            given_stacks[given] = number
    return number


cdef list stack_frames(uint32_t stack):
    """Return a stack's frames as snapshots show them, innermost first. The caller owns the list; frames are shared."""
    stack = stack_of(stack)
    if stack >= FOREIGN_STACK:
        return list(foreign_frames(stack)) if foreign_frames is not None else []
    frames = rendered.get(stack)
    if frames is None:
        frames = rendered[stack] = [
            {"name": code.co_name, "filename": code.co_filename, "line": code_line(code, offset)}
            for code, offset in stacks[stack]
        ]
    return list(frames)


cdef int show_foreign_with(object frames_of) except -1:
    global foreign_frames
    foreign_frames = frames_of
    return 0


cdef uint32_t intern_name(str name) except? 0xFFFFFFFF:
    number = name_numbers.get(name)
    if number is None:
        with cython.critical_section(name_numbers):
            number = name_numbers.get(name)
            if number is None:
                names.append(name)
                number = name_numbers[name] = len(names) - 1
    return number


cdef str name_of(uint32_t number):
    return names[number]


cdef str expect_text(object given, str what):
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {type(given).__name__}")
    return given


def set_user_metadata(text: str) -> None:
    """Attach `text` to everything that the calling thread records from now on; "" attaches nothing."""
    trace_set_metadata(intern_name(expect_text(text, "user metadata")))


def get_user_metadata() -> str:
    """Return the text that the calling thread currently attaches."""
    cdef uint32_t number = trace_set_metadata(0)
    trace_set_metadata(number)
    return names[number]


cdef object compile_contexts = __import__("threading").local()


def push_compile_context(name: str) -> None:
    """Name what the calling thread compiles from now on."""
    cdef uint32_t before = trace_set_compile_context(intern_name(expect_text(name, "a compile context")))
    if not hasattr(compile_contexts, "below"):
        compile_contexts.below = []
    compile_contexts.below.append(before)


def pop_compile_context() -> None:
    """Return to the name before the last push; does nothing without one."""
    cdef list below = getattr(compile_contexts, "below", None)
    if below:
        trace_set_compile_context(below.pop())
