"""Deep mode: Allotment as PyTorch's own allocator, with a part in C++ that is compiled against the installed PyTorch.

| File | What it is |
|---|---|
| `framework_interface.h` | the framework interface: what PyTorch needs from Allotment, as a table of C functions |
| `header` | the same, for Cython |
| `interface` | that table, filled in |
| `bound_devices` | which allocator serves each device, and PyTorch's functions that the engine calls |
| `failures` | the last failure of a thread, with PyTorch's message |
| `blocks` · `pools` · `history` · `snapshots` · `statistics` · `control` | the functions of the table, by topic |
| `torch_allocator.cc` | the torch allocator: PyTorch's allocator interface on the framework interface |
| `interface.hpp` · `conversions.hpp` | the table in C++, its failures as exceptions; its types converted to PyTorch's |
| `upcalls.hpp` · `observers.hpp` | functions of PyTorch that the engine calls; informs profilers, gauges and observers |
| `contexts.hpp` · `versions.hpp` | contexts as numbers; names for the differences between releases |
| `building` | finds the compiled torch allocator, or compiles and keeps it |
| `self_check` · `comparing` | a check with a release that deep mode is not proven with; compares the reports of two processes |
| `deep` | puts the torch allocator in place of PyTorch's own |
"""  # noqa: E501
