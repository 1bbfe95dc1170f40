# Made from per_thread.pyx by `make stubs`: change it there.

def thread_stream() -> int:
    """Return the number by which allocators know the calling thread's own default stream."""

def is_own(stream: int) -> bool:
    """Whether a number is that of the calling thread's own default stream."""
