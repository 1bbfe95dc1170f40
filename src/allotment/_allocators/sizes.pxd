"""The size of a request as callers write it: a number of bytes, or text with a unit such as "1MiB".

Settings can read such text and the core knows no settings, so allocators convert text to an int before they pass it on.
An ordinary int costs one check of its type.
"""

from allotment._core.tools.numbers cimport is_plain_int

# Returns an int; calls `__index__` once, which may return different values. Raises TypeError; SettingsError for text
# that is not a size.
cdef object size_of_any(object given)


cdef inline object whole_size(object given):
    return given if is_plain_int(given) else size_of_any(given)
