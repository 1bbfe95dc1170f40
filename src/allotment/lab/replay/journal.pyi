# Made from journal.pyx by `make stubs`: change it there.

import numpy as np

SEGMENT_EVENT: np.dtype[np.void]

LATE_FREE: np.dtype[np.void]
