# Made from plugged_memory.pyx by `make stubs`: change it there.

from allotment._allocators.base import AllocatorBase

class PluggedMemory(AllocatorBase): ...
