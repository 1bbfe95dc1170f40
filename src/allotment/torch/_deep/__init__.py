"""Allotment as PyTorch's own allocator: C++ compiled against the PyTorch found here, and what it calls.

| File | What it is |
|---|---|
| `allotment_points.h` | what PyTorch's interface needs of our allocators, as a table of C functions |
| `points` | that table, filled |
| `stand_in.cc` · `contexts.hpp` · `versions.hpp` | PyTorch's allocator interface over it; contexts as numbers; what differs between versions |
| `building` | the compiled stand-in: made once, kept by versions |
| `deep` | the stand-in in the place of PyTorch's allocator |
"""  # noqa: E501
