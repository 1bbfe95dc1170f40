from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport strdup

from allotment._allocators.caching.entering cimport enter_once
from allotment._core.edge.contexts_in_use cimport contexts_in_use
from allotment._core.edge.words cimport NO_CONTEXT
from allotment._core.engine cimport engine_leave
from allotment._core.model.model cimport Engine
from allotment._core.records.history cimport name_of, show_foreign_with
from allotment._core.records.trace cimport TraceRecord, tracker_t
from allotment.torch._deep.bound_devices cimport (
    allocator_at, bound, bound_allocator, bound_allocators, let_framework_gather, listen, state_of_all, upcalls)
from allotment.torch._deep.failures cimport set_failure
from allotment.torch._deep.header cimport (
    ALLOTMENT_DEVICES_MOST, ALLOTMENT_FOREIGN_CONTEXT, allotment_interface, allotment_record)

from allotment._core.records.history import (
    get_user_metadata, pop_compile_context, push_compile_context, set_user_metadata)
from allotment._rules import has
from allotment.errors import AddressError

cdef extern from *:
    """
    static __thread char* allotment_metadata_text;
    """
    char* metadata_text "allotment_metadata_text"

cdef extern from "Python.h" nogil:
    const char* PyUnicode_AsUTF8(object text) except NULL

assert FOREIGN_STACK == ALLOTMENT_FOREIGN_CONTEXT

cdef dict marked_texts = {}
cdef bytes no_context = NO_CONTEXT.encode()
cdef const char* NO_TEXT = no_context
cdef const char* EMPTY = b""
cdef const char* EXACT_ADDRESS = b"mallocWithAddress"


cdef int is_recording(int device) noexcept nogil:
    if 0 <= device < ALLOTMENT_DEVICES_MOST and bound(device).engine != NULL:
        return bound(device).engine.trace.history
    return will_record()


cdef int will_record() noexcept with gil:
    """Whether a device that is not bound yet will record its history, as the bound ones do."""
    return state_of_all().history is not None


cdef int all_contexts_in_use(void (*visit)(void*, uint32_t) noexcept nogil, void* self) noexcept nogil:
    cdef Engine* engine
    cdef int device
    for device in range(ALLOTMENT_DEVICES_MOST):
        engine = bound(device).engine
        if engine == NULL:
            continue
        if not enter_once(engine):
            return 0
        contexts_in_use(engine, visit, self)
        engine_leave(engine)
    return 1


cdef const char* text_of(uint32_t name) noexcept with gil:
    """Return a name's text. The pointer stays valid: the table of names keeps the string, and it keeps its UTF-8."""
    try:
        return PyUnicode_AsUTF8(name_of(name))
    except BaseException:
        return EMPTY


cdef void fill_record(allotment_record* out, const TraceRecord* record, int device) noexcept nogil:
    cdef int mark = bound(device).mark
    out.action = record.action
    out.device = device
    out.address = record.address
    out.size = record.size
    out.stream = record.stream
    out.pool_first = record.pool_first
    out.pool_second = record.pool_second
    out.time_us = record.time_us
    out.context = shown_context(record.stack)
    out.compile_context = NO_TEXT if record.compile_context == 0 else text_of(record.compile_context)
    out.user_metadata = EMPTY if record.metadata == 0 else text_of(record.metadata)
    out.internal_metadata = EXACT_ADDRESS if record.exact_address and mark == 2 else EMPTY
    if record.exact_address and mark == 1:
        out.user_metadata = EXACT_ADDRESS if record.metadata == 0 else marked_text_of(record.metadata)


cdef const char* marked_text_of(uint32_t name) noexcept with gil:
    try:
        text = marked_texts.setdefault(name, f"{name_of(name)}\nmallocWithAddress")
        return PyUnicode_AsUTF8(text)
    except BaseException:
        return EMPTY


cdef void relay(void* listener, const TraceRecord* record) noexcept nogil:
    """A tracker of the engine's trace; `listener` is the device's index."""
    cdef allotment_record out
    fill_record(&out, record, <int> <size_t> listener)
    upcalls().record(&out)


cdef int relay_records(int on) noexcept with gil:
    cdef tracker_t tracker = NULL
    if on:
        tracker = relay
    try:
        listen(tracker)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int record_history(int on, int level, size_t most, int clear, const char* const* skip, size_t skip_count,
                        int framework_records) noexcept with gil:
    cdef size_t i
    try:
        names = {skip[i].decode() for i in range(skip_count)}
        arguments = {
            "enabled": "all" if on else None,
            "context": (None, "state", "alloc", "all")[level] if on else None,
            "max_entries": min(most, 1 << 61),
            "clear_history": bool(clear),
            "skip_actions": names,
        }
        state = state_of_all()
        with state.lock:
            state.history = {**arguments, "skip_actions": skippable(state.settings, names)} if on else None
            for allocator in bound_allocators().values():
                allocator.record_history(**{**arguments, "skip_actions": skippable(allocator.settings, names)})
            let_framework_gather(on and framework_records)
        return 1
    except BaseException as error:
        return set_failure(error)


def skippable(settings: Settings, names: set[str]) -> set[str]:
    """Return the events that this version's rules can leave out of a history; ignore other names."""
    return names if has(settings.compat, "2.13") else names & state_of_all().SKIPPABLE


cdef int annotate(int device, const char* const* keys, const char* const* values, size_t count) noexcept with gil:
    cdef size_t i
    try:
        allocator_at(device).history.record_annotation({keys[i].decode(): values[i].decode() for i in range(count)})
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int annotate_block(int device, const void* address, const char* text) noexcept with gil:
    try:
        bound_allocator(device).history.annotate(<size_t> address, text.decode())
        return 1
    except AddressError as error:
        return set_failure(RuntimeError(f"annotateMemory: no live allocation found at pointer {error.address:#x}"))
    except BaseException as error:
        return set_failure(error)


cdef void push_context(const char* name) noexcept with gil:
    try:
        push_compile_context(name.decode())
    except BaseException as error:
        set_failure(error)


cdef void pop_context() noexcept with gil:
    try:
        pop_compile_context()
    except BaseException as error:
        set_failure(error)


cdef void put_user_metadata(const char* text) noexcept with gil:
    try:
        set_user_metadata(text.decode())
    except BaseException as error:
        set_failure(error)


cdef const char* user_metadata() noexcept with gil:
    global metadata_text
    try:
        free(metadata_text)
        metadata_text = strdup(get_user_metadata().encode())
        return EMPTY if metadata_text == NULL else <const char*> metadata_text
    except BaseException as error:
        set_failure(error)
        return EMPTY


cdef void add_frame(void* frames, const char* name, const char* file, int64_t line) noexcept with gil:
    (<list> frames).append({"name": name.decode(errors="replace"), "filename": file.decode(errors="replace"),
                            "line": line})


def frames_of(context: int) -> list[dict[str, Any]]:
    """The frames of one of PyTorch's contexts, innermost first."""
    cdef list frames = []
    cdef uint32_t number = context
    cdef void* self = <void*> frames
    with nogil:
        upcalls().frames(number, add_frame, self)
    return frames


cdef void fill_history(allotment_interface* table) noexcept:
    table.is_recording = is_recording
    table.contexts_in_use = all_contexts_in_use
    table.relay_records = relay_records
    table.record_history = record_history
    table.annotate = annotate
    table.annotate_block = annotate_block
    table.push_compile_context = push_context
    table.pop_compile_context = pop_context
    table.set_user_metadata = put_user_metadata
    table.user_metadata = user_metadata


show_foreign_with(frames_of)
