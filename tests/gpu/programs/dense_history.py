"""A program under dense placement that writes its history. Arguments: the mode, and the file."""

from __future__ import annotations

import sys

from allotment.torch._install import install

MODE, FILE = sys.argv[1:]
install(MODE, settings="placement:dense,dense_slack:0")

import torch  # noqa: E402

from allotment.torch import memory  # noqa: E402

MIB = 1 << 20

memory._record_memory_history()
tensors = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
del tensors[::2]
stitched = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
del stitched
memory._set_allocator_settings("garbage_collection_threshold:0.9")
memory._dump_snapshot(FILE)
