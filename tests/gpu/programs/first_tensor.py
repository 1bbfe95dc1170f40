"""Prints how long after the start of this process its first tensor on a GPU was there."""

import os
import sys
import time
from pathlib import Path

import torch

torch.empty(1000, device="cuda")
now = time.clock_gettime(time.CLOCK_BOOTTIME)
ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
start = int(ticks) / os.sysconf("SC_CLK_TCK")
mode = sys.modules["allotment.torch"].installed_mode() if "allotment.torch" in sys.modules else "native"
print(f"{sys.argv[1]}: {mode}, {now - start:.2f} s from the start of the process to the first tensor", flush=True)
