"""Positions of bits in a 64-bit word, through the compiler's intrinsics."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef ALLOTMENT_BITS
    #define ALLOTMENT_BITS
    #if defined(_MSC_VER)
    #include <intrin.h>
    static __inline int allotment_lowest_bit(unsigned __int64 w) {
        unsigned long i; _BitScanForward64(&i, w); return (int)i;
    }
    static __inline int allotment_highest_bit(unsigned __int64 w) {
        unsigned long i; _BitScanReverse64(&i, w); return (int)i;
    }
    #else
    #define allotment_lowest_bit(w) __builtin_ctzll(w)
    #define allotment_highest_bit(w) (63 - __builtin_clzll(w))
    #endif
    #endif
    """
    int lowest_bit "allotment_lowest_bit"(uint64_t word) noexcept nogil     # pre: word != 0
    int highest_bit "allotment_highest_bit"(uint64_t word) noexcept nogil   # pre: word != 0
