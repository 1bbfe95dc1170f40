"""The stream-order sanitizer: who touched which block, and whether anything says in which order.

order       what comes before what: streams, events, the host
reports     what was found: two accesses, each with its stack
blocks      what is known of each block: its life, its accesses, the streams declared for it
watch       an allocator that tells of its requests and frees; poison, redzones, quarantine
arrays      NumPy arrays that tell what they touch
"""
