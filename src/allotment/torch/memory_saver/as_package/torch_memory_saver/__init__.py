"""Stands where the package torch_memory_saver would be; importing it replaces it with Allotment's."""

from allotment.torch import memory_saver

memory_saver.install()
