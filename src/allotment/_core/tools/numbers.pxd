"""Reads Python ints on the hot path.

Sizes and addresses are ints of one or two digits, which these functions read in place. The C API's own functions take
as long as the allocation that the number is for.
"""

cdef extern from *:
    """
    #ifndef ALLOTMENT_NUMBERS
    #define ALLOTMENT_NUMBERS
    static inline int allotment_int_value(PyObject* number, long long* value) {
    #if PY_VERSION_HEX >= 0x030C0000
        /* The three low bits of the tag are the sign (0: positive); the rest is the number of digits. */
        const digit* digits = ((PyLongObject*) number)->long_value.ob_digit;
        switch (((PyLongObject*) number)->long_value.lv_tag) {
            case 1 << 3: *value = (long long) digits[0]; return 1;
            case 2 << 3: *value = (long long) digits[0] | ((long long) digits[1] << PyLong_SHIFT); return 1;
            default: break;
        }
    #else
        const digit* digits = ((PyLongObject*) number)->ob_digit;
        switch (Py_SIZE(number)) {
            case 0: *value = 0; return 1;
            case 1: *value = (long long) digits[0]; return 1;
            case 2: *value = (long long) digits[0] | ((long long) digits[1] << PyLong_SHIFT); return 1;
            default: break;
        }
    #endif
        int overflow = 0;
        long long read = PyLong_AsLongLongAndOverflow(number, &overflow);
        if (overflow) return 0;
        *value = read;
        return 1;
    }
    #define allotment_is_plain_int(object) PyLong_CheckExact(object)
    #endif
    """
    bint is_plain_int "allotment_is_plain_int"(object something) noexcept
    # Whether an int fits; if not, `value` is unchanged. pre: exactly an int
    bint int_value "allotment_int_value"(object number, long long* value) noexcept
