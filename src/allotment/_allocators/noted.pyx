"""A change of state and the note that it was made, with no interrupt in between.

Python looks for signals after every call. If Ctrl-C comes between `begin(...)` and `begun.append(...)`, nobody knows
that there is something to end. Here both are one call of compiled code.
"""


def noted(kept: list[Any], item: Any, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a compiled function, and append `item` to `kept` if it succeeds; gives what it returned."""
    result = function(*arguments, **keywords)
    kept.append(item)
    return result
