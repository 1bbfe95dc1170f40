from allotment._core.model.sizes cimport Tuning

cdef int fill_tuning(Tuning* tuning, object settings) except -1
