"""Running something in a forked child."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def goes_well_in_child(action: Callable[[], object]) -> bool:
    """Whether a forked child can do `action` without an exception; its traceback goes to standard error."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0
