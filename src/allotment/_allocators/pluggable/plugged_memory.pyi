from allotment._allocators.base import AllocatorBase

class PluggedMemory(AllocatorBase):
    @property
    def initialized(self) -> bool: ...
