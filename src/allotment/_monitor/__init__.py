"""Processes that announce themselves, so that `allotment top` can ask them for their figures.

figures    the figures of one allocator, and the only place that validates what another process sends
answering  the thread that answers other processes
asking     finds the processes of this user, and asks them
overview   their answers by process and device, with rates, and the memory of each device that other processes hold
"""
