"""PyTorch, or an error that says how to get it."""

from allotment._adapters.frameworks import import_framework

torch = import_framework("allotment.torch", "torch", "torch")
