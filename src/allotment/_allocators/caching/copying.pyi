# Made from copying.pyx by `make stubs`: change it there.

def choose(*, lanes: int = 16, span: int = ..., stores: bool = True, pin_kept: bool = False) -> None:
    """Set how memory is copied, for measurements and tests; called without arguments, as it was.

    `lanes`: threads at most, each with two buffers of `span` bytes; `stores`: past the caches; `pin_kept`: whether
    host pages that `keep_host` keeps are pinned when they are used again.
    """
