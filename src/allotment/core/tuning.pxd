from allotment.core.sizes cimport Tuning

cdef int fill_tuning(Tuning* tuning, object settings) except -1
