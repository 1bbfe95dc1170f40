"""The module in which torch_memory_saver has its class."""

from allotment.torch.memory_saver._saver import TorchMemorySaver

__all__ = ["TorchMemorySaver"]
