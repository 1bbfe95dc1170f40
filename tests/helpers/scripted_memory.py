"""Host memory that is only numbers: it fails when told to, and records every call."""

from itertools import count


class ScriptedMemory:
    addresses = count(0x10_0000, 0x1000)
    """No two memories return the same address: the allocation map of the process outlives a test."""

    def __init__(self):
        self.calls = []
        self.failures = []
        """The exceptions of the next calls of `allocate`; None stands for a result of 0."""
        self.on_call = lambda: None
        self.reusable = []
        """Addresses to return again before new ones."""

    def allocate(self, size):
        self.calls.append(("allocate", size))
        self.on_call()
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                return 0
            raise failure
        if size == 0:
            return 0
        return self.reusable.pop() if self.reusable else next(self.addresses)

    def free(self, address):
        self.calls.append(("free", address))
        self.on_call()

    def freed(self):
        return sorted(address for what, address in self.calls if what == "free")
