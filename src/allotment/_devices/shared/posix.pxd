"""System interfaces that the host device needs and Cython's own headers do not declare."""

from libc.stdint cimport uint64_t
from posix.time cimport timespec
from posix.types cimport clockid_t, off_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    ctypedef unsigned long pthread_t

    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

    int pthread_condattr_init(pthread_condattr_t* attributes)
    int pthread_condattr_setclock(pthread_condattr_t* attributes, clockid_t clock)
    int pthread_condattr_destroy(pthread_condattr_t* attributes)
    int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)

    int pthread_create(pthread_t* thread, const void* attributes, void* (*start)(void*) noexcept nogil, void* argument)
    int pthread_join(pthread_t thread, void** result)
    pthread_t pthread_self()
    int pthread_equal(pthread_t one, pthread_t other)

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int descriptor, int mode, off_t offset, off_t length)

cdef extern from "<linux/falloc.h>" nogil:
    enum: FALLOC_FL_PUNCH_HOLE
    enum: FALLOC_FL_KEEP_SIZE

cdef extern from *:
    # Called by its number: the C libraries that wheels are built against are older than the function.
    """
    #include <unistd.h>
    #include <linux/memfd.h>
    #include <sys/syscall.h>
    static inline int allotment_memory_file(const char* name) {
        return (int) syscall(SYS_memfd_create, name, (unsigned int) MFD_CLOEXEC);
    }
    static inline int allotment_sealable_file(const char* name) {
        return (int) syscall(SYS_memfd_create, name, (unsigned int) (MFD_CLOEXEC | MFD_ALLOW_SEALING));
    }
    """
    int open_memory_file "allotment_memory_file"(const char* name) nogil
    int open_sealable_file "allotment_sealable_file"(const char* name) nogil

cdef enum:
    # From the kernel interface; newer than the C libraries that wheels are built against.
    F_ADD_SEALS = 1033
    F_GET_SEALS = 1034
    F_SEAL_SEAL = 1
    F_SEAL_SHRINK = 2
    F_SEAL_GROW = 4

cdef extern from *:
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    int RELAXED "__ATOMIC_RELAXED"
    int ACQ_REL "__ATOMIC_ACQ_REL"
    uint64_t atomic_load "__atomic_load_n"(const uint64_t* place, int order) nogil
    void atomic_store "__atomic_store_n"(uint64_t* place, uint64_t value, int order) nogil
    uint64_t atomic_add "__atomic_add_fetch"(uint64_t* place, uint64_t value, int order) nogil
    uint64_t atomic_subtract "__atomic_sub_fetch"(uint64_t* place, uint64_t value, int order) nogil
