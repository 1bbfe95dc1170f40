"""Makes NumPy arrays on an allocator's memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from numpy import ndarray


def require_numpy() -> None:
    """Raise ImportError, in one line, where NumPy was built for another Python, such as one with another lock."""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"this Python cannot load its NumPy; install one that was built for it: {sys.executable} -m pip install"
            " --force-reinstall numpy"
        ) from error


def array(allocator: Any, shape: int | tuple[int, ...], dtype: Any, stream: Any) -> ndarray[Any, Any]:
    """Return an array whose base is the buffer that holds its memory."""
    require_numpy()
    import numpy  # imported late: most users of an allocator need no array

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"an array of {kind} holds Python objects, which an allocator's memory must not hold")
    size = numpy.broadcast_to(numpy.empty((), kind), shape).nbytes  # raises for an invalid shape
    if size == 0:
        return numpy.ndarray(shape, kind)
    made = numpy.ndarray(shape, kind, allocator._ready(size, stream))
    if getattr(allocator, "_sanitizer", None) is None:
        return made
    from allotment._allocators.caching.sanitizer.arrays import watched

    return cast("ndarray[Any, Any]", watched(made, allocator))


def full(allocator: Any, shape: int | tuple[int, ...], value: Any, dtype: Any, stream: Any) -> ndarray[Any, Any]:
    """Return an array filled with a value."""
    require_numpy()
    import numpy

    made = array(allocator, shape, numpy.asarray(value).dtype if dtype is None else dtype, stream)
    if made.nbytes != 0:  # NumPy would visit all items even of a type without bytes
        made[...] = value
    return made


def like(allocator: Any, other: Any, stream: Any) -> ndarray[Any, Any]:
    """Return an array with the shape and dtype of another."""
    require_numpy()
    import numpy

    model = numpy.asanyarray(other)
    return array(allocator, model.shape, model.dtype, stream)
