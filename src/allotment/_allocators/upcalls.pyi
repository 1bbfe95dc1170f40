# Made from upcalls.pyx by `make stubs`: change it there.

def report_unraisable(error: BaseException, source: object) -> None:
    """Pass an exception that no caller can catch to `sys.unraisablehook`; `source` is the object that raised it."""
