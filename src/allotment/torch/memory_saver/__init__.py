"""The interface of the package torch_memory_saver, on Allotment's tags: same names, same meaning.

    python -m allotment.torch --memory-saver script.py      # `import torch_memory_saver` finds this module

    import allotment.torch.memory_saver
    allotment.torch.memory_saver.install()                  # the same for this process and the ones that it starts

A region is a tag, so expandable segments and dense placement can stay on, captures are included, and memory that one
region releases serves the others.
"""

from allotment.torch.memory_saver._processes import configure_subprocess, install
from allotment.torch.memory_saver._saver import TorchMemorySaver

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]

torch_memory_saver = TorchMemorySaver()
"""The object that programs use: `from torch_memory_saver import torch_memory_saver`."""
