cimport cython
from libc.stdint cimport uint32_t

from allotment.errors import RequestError

cdef list names = [None]
cdef dict contexts = {}         # its critical section guards both


cdef uint32_t tenant_context(str name) except? 0xFFFFFFFF:
    """Return the context of a tenant without a stack; registers a new name."""
    if not name:
        raise RequestError("invalid tenant name: it is empty; give a text")
    with cython.critical_section(contexts):
        context = contexts.get(name)
        if context is None:
            if len(names) == TENANTS_MOST:
                raise RequestError(f"too many tenants: a process can have {len(names) - 1}, and {name!r} is one more")
            context = len(names) << TENANT_SHIFT
            names.append(name)      # first, because code that finds the context may look up its name
            contexts[name] = context
    return context


cdef str tenant_name(uint32_t context):
    """Return None if it belongs to no tenant."""
    return names[context >> TENANT_SHIFT]
