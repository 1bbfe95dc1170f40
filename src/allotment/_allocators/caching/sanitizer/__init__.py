"""The stream-order sanitizer: which work touched which block, and whether anything orders it.

order       which work comes before which: streams, events, the host
reports     the findings: two accesses, each with its stack
blocks      the state of each block: its life, its accesses, the streams declared for it
watch       an allocator that reports its requests and frees; poison, redzones, quarantine
arrays      NumPy arrays that report what they touch
"""
