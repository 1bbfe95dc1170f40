"""PyTorch's pinned memory from a `PinnedAllocator`.

PyTorch reaches its allocator of pinned memory through an interface of virtual methods. `torch_pinned_allocator.cc`
implements it over the table of `pinned_points.h`. It is compiled against the installed PyTorch, as deep mode's library
is. The allocator itself is made at the first request, by the device that is current then: before, a program may fork.
"""
