"""Processes that announce themselves, so that `allotment top` can ask them for their figures.

figures    what an allocator says of itself, and the one gate for what another process says
answering  the thread of a process that answers
asking     finding the processes of this user, and asking them
overview   their answers by process and device, with rates, and what nobody here holds of each device
"""
