"""Writes a snapshot of a data loader's pinned memory, which is ours, to the file that is named."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import allotment.torch

allotment.torch.install("deep", pinned="torch")
memory = torch.cuda.memory
has_history = hasattr(memory, "_annotate_tensor")  # both came with PyTorch 2.14
memory._record_memory_history(stacks="python", **({"record_pinned_host_memory": True} if has_history else {}))
items = torch.arange(1 << 20).float().reshape(1024, 1024)
for (batch,) in DataLoader(TensorDataset(items), batch_size=100, pin_memory=True):
    on_device = batch.to("cuda", non_blocking=True)
memory._dump_snapshot(sys.argv[1])
