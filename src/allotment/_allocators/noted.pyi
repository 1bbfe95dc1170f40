# Made from noted.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

def noted(kept: list[Any], item: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any: ...
