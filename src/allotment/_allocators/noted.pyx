"""Makes a change of state and notes it, with no interrupt in between.

Python checks for signals after every call. If Ctrl-C arrives between `begin(...)` and `begun.append(...)`, nobody knows
that something must be ended. Here both are one call of compiled code.
"""


def noted(kept: list[Any], item: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a compiled function, and append `item` to `kept` if it succeeds; return the function's result."""
    result = function(*arguments, **keywords)
    kept.append(item)
    return result
