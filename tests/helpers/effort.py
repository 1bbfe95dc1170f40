"""How much of what repeats itself is run: all of it, or a sample, where a build is too slow for all of it.

ALLOTMENT_TESTS_THINNED=20 leaves one in twenty. Coverage does that: a traced line costs a hundred times its own time.
"""

import os

THINNED = int(os.environ.get("ALLOTMENT_TESTS_THINNED", "1"))


def some(count):
    return max(1, count // THINNED)


def sample(things):
    return things[::THINNED]
