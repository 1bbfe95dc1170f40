"""A program that knows nothing of Allotment: prints its arguments, a sum from the GPU, and the allocator's name."""

import sys

import torch

if __name__ == "__main__":
    total = torch.arange(1_000, device="cuda").sum().item()
    print(sys.argv[1:], total, type(torch.cuda.memory._get_current_allocator().allocator()).__name__, __file__)
    sys.exit(int(sys.argv[1]))
