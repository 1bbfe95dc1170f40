"""Text and names that the calling thread attaches to what allocators record: user metadata and compile contexts.

metadata.set_user_metadata("step 3")
...                                     # every entry of this thread has user_metadata "step 3"
metadata.set_user_metadata("")
"""

from allotment._core.records.history import (
    get_user_metadata,
    pop_compile_context,
    push_compile_context,
    set_user_metadata,
)

__all__ = ["get_user_metadata", "pop_compile_context", "push_compile_context", "set_user_metadata"]
