# Made from history.pyx by `make stubs`: change it there.

def set_user_metadata(text: str) -> None:
    """Attach `text` to everything that the calling thread records from now on; "" attaches nothing."""

def get_user_metadata() -> str:
    """Return the text that the calling thread currently attaches."""

def push_compile_context(name: str) -> None:
    """Name what the calling thread compiles from now on."""

def pop_compile_context() -> None:
    """Return to the name before the last push; does nothing without one."""
