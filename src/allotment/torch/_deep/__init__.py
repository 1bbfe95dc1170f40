"""Allotment as PyTorch's own allocator: C++ compiled against the PyTorch found here, and what it calls.

| File | What it is |
|---|---|
| `allotment_points.h` | what PyTorch's interface needs of our allocators, as a table of C functions |
| `header` | the same, for Cython |
| `served` | which allocator serves a device, and the functions that PyTorch gives us |
| `failing` | why something failed, in PyTorch's words |
| `blocks` · `pools` · `history` · `snapshots` · `figures` · `control` | the functions, by what they are about |
| `points` | that table, filled |
| `stand_in.cc` | PyTorch's allocator interface over it |
| `points.hpp` · `facts.hpp` | the table in C++, its failures as exceptions; what it tells, in PyTorch's types |
| `upcalls.hpp` · `telling.hpp` | what the engine asks of PyTorch; what PyTorch's allocator tells profilers, gauges and observers |
| `contexts.hpp` · `versions.hpp` | contexts as numbers; what differs between versions |
| `building` | the compiled stand-in: made once, kept by versions |
| `self_check` · `comparing` | a check with a release that deep mode is not proven with; what two processes tell, compared |
| `deep` | the stand-in in the place of PyTorch's allocator |
"""  # noqa: E501
