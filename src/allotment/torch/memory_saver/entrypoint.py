"""The place that torch_memory_saver has its class in."""

from allotment.torch.memory_saver._saver import TorchMemorySaver

__all__ = ["TorchMemorySaver"]
