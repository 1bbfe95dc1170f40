"""The table of a device that has every operation, each of which calls a method of a Python object.

    engine, no interpreter lock          trampoline                        the user's class
    table.memory_info(self, ...)   ->    take the lock, call, check   ->   def memory_info(self): ...
                            status  <-   keep what was raised         <-   a result, or an exception

Nothing that a method does gets past its trampoline. It checks every result before the result reaches the engine. It
turns every exception, an interrupt included, into a status, and keeps the exception in the thread's slot
(_core/contract/raising.pxd), where the error that the caller finally sees is chained to it.
"""

from allotment._core.contract.table cimport DeviceTable

cdef const DeviceTable* trampolines() noexcept
