"""Enters and leaves tags; sleeps and wakes all tags of a process."""

cimport cython
from libc.stdint cimport uint32_t

from allotment._core.records.tags cimport (
    TAGS_MOST, tag_enter, tag_everywhere, tag_forget, tag_name, tag_number, tag_pool_id)

from allotment._allocators.current import all_holders
from allotment.errors import PoolError, RequestError

cdef bint noticed = False       # whether allocators made before the first tag know of tags; later ones always do
# The critical section of this object guards these two. While a number has a holder, no other name gets it.
cdef object guard = object()
cdef uint32_t[TAGS_MOST + 1] holders    # by number: tag objects, and threads inside
cdef bint[TAGS_MOST + 1] wanted         # by number: whether an object was made since `forget_unused` searched for pools


cdef uint32_t held_number(str name) except? 0:
    """Return the number of a tag, with one more holder; 0 if none is left."""
    cdef uint32_t number
    with cython.critical_section(guard):
        number = tag_number(name, True)
        if number != 0:
            holders[number] += 1
            wanted[number] = True
    return number


cdef void add_holder(uint32_t number) noexcept:
    with cython.critical_section(guard):
        holders[number] += 1


cdef void remove_holder(uint32_t number) noexcept:
    with cython.critical_section(guard):
        holders[number] -= 1


cdef uint32_t number_for(str name) except 0:
    """Return the number of a tag, held; if none is left, reuse that of a tag that nobody uses."""
    cdef uint32_t number = held_number(name)
    if number == 0:
        forget_unused()
        number = held_number(name)
    if number == 0:
        raise RequestError(
            f"too many tags: a process can use {TAGS_MOST} at once, and {name!r} is one more; `empty_cache` of the "
            "allocators frees tags whose memory is only cached")
    return number


cdef int forget_unused() except -1:
    """Forget the tags that have no memory and no limit on any allocator, no object, and no thread inside."""
    cdef uint32_t number
    for number in range(1, TAGS_MOST + 1):
        wanted[number] = False
    used = set()
    for holder in all_holders():
        sleep = getattr(holder, "sleep", None)
        if sleep is not None:
            sleep._forget_idle_tags()
            used.update(sleep.tags())
    for number in range(1, TAGS_MOST + 1):
        with cython.critical_section(guard):
            if holders[number] == 0 and not wanted[number] and tag_name(number) not in used:
                tag_forget(number)
    return 0


@cython.final
cdef class tag:     # noqa: N801: entered like a function
    """tag(name)\n--\n
    Mark what this thread allocates inside `with allotment.tag(name):`, on every allocator.

    On each allocator, a tag has its own pool on virtual memory, so that it shares no page with others. It can be paused
    and resumed (`Allocator.pause`, `resume`), and has limits (`Allocator.set_limit`). Of two nested tags, the inner one
    counts. A private pool to which requests are routed takes precedence over tags. On devices without virtual memory a
    tag has plain memory, which can be limited but not paused.

    Raises RequestError for an empty name, or for too many tags: 65,535 with memory or a limit, or in use. Only one
    thread at a time may enter a tag object; names hold for the process.
    """

    def __init__(self, name: str):
        global noticed
        if not isinstance(name, str):
            raise TypeError(f"the name of a tag must be a text, not {type(name).__name__}")
        if self.number != 0:
            raise TypeError(f"{self!r} exists already; make another tag")
        self.number = number_for(name)
        self.before = []
        if not noticed:
            noticed = True
            for holder in all_holders():
                sleep = getattr(holder, "sleep", None)
                if sleep is not None:
                    sleep._notice_tags()

    def __reduce__(self):
        return tag, (self.name,)    # the number has another name in another process

    def __dealloc__(self):
        if self.number != 0:
            remove_holder(self.number)

    @property
    def name(self) -> str:
        """Name of the tag."""
        return tag_name(self.number)

    def __enter__(self) -> Self:
        self.before.append(tag_enter(self.number))
        add_holder(self.number)
        return self

    def __exit__(self, kind, error, traceback):
        tag_enter(self.before.pop())
        remove_holder(self.number)

    def _enter_everywhere(self) -> None:
        """Put every thread that is in no tag, now and later, into this one, for the rest of the process."""
        cdef uint32_t before
        add_holder(self.number)
        before = tag_everywhere(self.number)
        if before != 0:
            remove_holder(before)

    def __repr__(self):
        return f"<tag {tag_name(self.number)!r}>"


def pool_of_tag_named(name: str) -> PoolId:
    """Return the id of the pool that a tag has on each allocator. Raises PoolError if no such tag exists."""
    cdef uint32_t number = tag_number(name, False)
    if number == 0:
        raise PoolError(f"there is no tag {name!r}")
    return 0, tag_pool_id(number)


cdef list sleepers():
    """Return the allocators with tags."""
    return [holder for holder in all_holders() if hasattr(holder, "sleep") and not holder.closed]


def check_host_limit(tags: list[tuple[Allocator, str]], keeping: Keeping) -> None:
    """Raise RequestError if host memory for the contents of all these tags is more than allowed."""
    if keeping.host_limit is not None:
        keeping.check_host_limit(sum(allocator.sleep._bytes_to_keep(name) for allocator, name in tags))


def sleep(
    keep: str = "host",
    *,
    keep_host: bool = False,
    folder: str | PathLike[str] | None = None,
    host_limit: int | str | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> int:
    """Pause every tag of every allocator of this process, and empty their caches; return the number of bytes released.

    The arguments are those of `Allocator.pause`; `host_limit` is for all tags together, and `progress` is called for
    each of them. Memory outside of tags stays. If a tag cannot be paused, tags paused before stay paused, and the
    error is raised. Raises what `Allocator.pause` raises.
    """
    from allotment._allocators.caching.keeping import Keeping   # imported late: few programs need it

    keeping = Keeping(keep, keep_host, folder, host_limit)
    sleeping = [(allocator, name) for allocator in sleepers()
                for name, figures in allocator.sleep.tags().items() if figures["reserved_bytes"] > 0]
    check_host_limit(sleeping, keeping)
    released = 0
    for allocator, name in sleeping:
        released += allocator.pause(name, keep=keep, keep_host=keep_host, folder=folder, progress=progress)
    for allocator in sleepers():
        released += allocator.trim_to(0)
    return released


def wake(*, progress: Callable[[int, int], None] | bool | None = None) -> None:
    """Resume every paused tag, on every allocator of this process.

    `progress` is called for each tag, as by `Allocator.resume`. If memory does not suffice for all, the tags that
    fitted are awake, the others asleep as before, and the error is raised. Raises what `Allocator.resume` raises.
    """
    for allocator in sleepers():
        for name in allocator.paused():
            if isinstance(name, str):
                allocator.resume(name, progress=progress)
