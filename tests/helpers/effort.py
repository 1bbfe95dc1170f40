"""How many of the repetitions run: all of them, or a sample for a build that is too slow for all.

ALLOTMENT_TESTS_THINNED=20 runs one in twenty. Coverage does that, because tracing makes a line a hundred times slower.
"""

import os

THINNED = int(os.environ.get("ALLOTMENT_TESTS_THINNED", "1"))


def some(count):
    return max(1, count // THINNED)


def sample(things):
    return things[::THINNED]
