cimport cython

from allotment._core.contract.types cimport bytes_t

import errno
import os
import sys
from contextlib import suppress

from allotment.errors import RequestError, UnsupportedError

cdef enum:
    ALIGNMENT = 4096

cdef set ON_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}

cdef extern from *:
    """
    #if defined(__linux__)
    #include <fcntl.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    /* Whether a write past the cache works here: some file systems accept the flag alone. */
    static int allotment_writes_directly(int file) {
        void* page = NULL;
        int ok;
        if (posix_memalign(&page, 4096, 4096) != 0) return 0;
        memset(page, 0, 4096);
        ok = pwrite(file, page, 4096, 0) == 4096;
        free(page);
        return ok;
    }
    /* Finds the blocks now, so that several threads can write them at once; nothing where that is not supported. */
    static void allotment_find_blocks(int file, long long size) { (void) !fallocate(file, 0, 0, size); }
    static int allotment_stop_direct(int file) { return fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_DIRECT); }
    #else
    static int allotment_writes_directly(int file) { return 0; }
    static void allotment_find_blocks(int file, long long size) {}
    static int allotment_stop_direct(int file) { return 0; }
    #endif

    #if defined(_WIN32)
    #include <io.h>
    static int allotment_process(void) { return 0; }
    static void allotment_close_file(int file, int emptied_by) { _close(file); }
    #else
    #include <unistd.h>
    static int allotment_process(void) { return (int) getpid(); }
    static void allotment_close_file(int file, int emptied_by) {
        if (emptied_by == (int) getpid()) (void) !ftruncate(file, 0);
        close(file);
    }
    #endif
    """
    bint writes_directly "allotment_writes_directly"(int file) nogil
    void find_blocks "allotment_find_blocks"(int file, long long size) nogil
    int stop_direct "allotment_stop_direct"(int file) nogil
    int process "allotment_process"() noexcept nogil
    void close_file "allotment_close_file"(int file, int emptied_by) noexcept nogil


@cython.final
cdef class FileCopy:
    """A file without a name, for the contents of paused memory."""

    cdef void close(self) noexcept:
        # Without `os.close`: the last reference may be dropped at the program's end, without the module's names.
        if self.is_open:
            self.is_open = False
            with nogil:
                close_file(self.descriptor, self.emptied_by)

    def __dealloc__(self):
        self.close()


cdef FileCopy file_copy(object folder, bytes_t size, bint for_children):
    cdef FileCopy made = FileCopy.__new__(FileCopy)
    cdef bytes_t whole = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    cdef int descriptor
    cdef bint direct
    if not hasattr(os, "pread"):
        raise UnsupportedError('this system does not support keep="file"; use keep="host"', operation="pause")
    if folder is None:
        import tempfile     # imported late: few programs need it
        folder = tempfile.gettempdir()
    folder = os.fspath(folder)
    check_folder(folder, whole)
    try:
        made.descriptor = open_nameless(folder)
        made.is_open = True
        made.emptied_by = 0 if for_children else process()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise RequestError(
            f"{folder!r} cannot hold a file for paused memory: {error.strerror}; give another folder=") from error
    descriptor = made.descriptor
    if hasattr(os, "O_DIRECT") and os.O_DIRECT & flags_of(descriptor):
        with nogil:
            direct = writes_directly(descriptor)
        if not direct:
            stop_direct(descriptor)
    with nogil:
        find_blocks(descriptor, whole)
    return made


cdef int flags_of(int descriptor) except -1:
    import fcntl    # imported late: not on every system
    return fcntl.fcntl(descriptor, fcntl.F_GETFL)


cdef int check_folder(object folder, bytes_t size) except -1:
    if not os.path.isdir(folder):
        raise RequestError(
            f"{folder!r} is {'not a folder' if os.path.exists(folder) else 'missing'}: a file for paused memory "
            "needs a folder that exists")
    kind = file_system_of(folder)
    if kind in ON_MEMORY:
        raise RequestError(
            f"{folder!r} is on memory ({kind}), where a file would take as much of the host as keep=\"host\"; give a "
            "folder on a disk as folder=")
    state = os.statvfs(folder)
    if state.f_bavail * state.f_frsize < size:
        raise RequestError(
            f"{folder!r} has {state.f_bavail * state.f_frsize} bytes free, and the contents of the paused memory need "
            f"{size}; give another folder, or make room")
    return 0


cdef str file_system_of(object folder):
    """Return the kind of file system that a folder is on; "" if the system does not tell."""
    if sys.platform != "linux":
        return ""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                if before.split()[2] == wanted:
                    return after.split()[0]
    except OSError:
        pass
    return ""


cdef int open_nameless(object folder) except -1:
    """Return the descriptor of a new file that has no name, or none any more."""
    cdef int descriptor
    for flags in (getattr(os, "O_DIRECT", 0), 0):
        if hasattr(os, "O_TMPFILE"):
            try:
                return os.open(folder, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                    raise
        name = os.path.join(folder, f".allotment-{os.urandom(8).hex()}")
        try:
            descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        except OSError as error:
            if flags == 0 or error.errno != errno.EINVAL:
                raise
            with suppress(OSError):     # some file systems refuse direct I/O after they have created the file
                os.unlink(name)
            continue
        try:
            os.unlink(name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
