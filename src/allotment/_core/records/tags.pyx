cimport cython
from libc.stdint cimport uint32_t

from allotment.errors import RequestError

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef _MSC_VER
    #define ALLOTMENT_TAG_THREAD __declspec(thread)
    #else
    #define ALLOTMENT_TAG_THREAD __thread
    #endif
    static ALLOTMENT_TAG_THREAD uint32_t allotment_tag_here = 0;
    """
    uint32_t here "allotment_tag_here"

cdef list names = [""]
cdef dict numbers = {}          # its critical section guards all of these
cdef list forgotten = []        # numbers without a name
cdef bint used = False
cdef uint32_t everywhere = 0    # the tag of threads that are in none


cdef uint32_t tag_here() noexcept nogil:
    return here if here != 0 else everywhere


cdef uint32_t tag_everywhere(uint32_t tag) noexcept nogil:
    global everywhere
    cdef uint32_t before = everywhere
    everywhere = tag
    return before


cdef uint32_t tag_enter(uint32_t tag) noexcept nogil:
    global here
    cdef uint32_t before = here
    here = tag
    return before


cdef bint tags_are_used() noexcept nogil:
    return used


cdef uint32_t tag_number(str name, bint make) except? 0xFFFFFFFF:
    global used
    with cython.critical_section(numbers):
        number = numbers.get(name)
        if number is None:
            if not make:
                return 0
            if not name:
                raise RequestError("invalid tag name: it is empty; give a text")
            if len(names) <= TAGS_MOST:
                number = len(names)
                names.append(name)
            elif forgotten:
                number = forgotten.pop()
                names[number] = name
            else:
                return 0
            numbers[name] = number
            used = True
    return number


cdef int tag_forget(uint32_t tag) except -1:
    with cython.critical_section(numbers):
        if numbers.pop(names[tag], None) is not None:
            names[tag] = ""
            forgotten.append(tag)
    return 0


cdef str tag_name(uint32_t tag):
    return names[tag] if tag < len(names) else ""
