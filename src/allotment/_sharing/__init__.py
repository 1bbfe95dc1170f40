"""Blocks in more than one process.

handle        a block's name for other processes: bytes, checked
identity      identifies this process, user, boot and device
device_calls  the contract's operations that sharing needs
ordering      orders an importer's work after what the owner submitted before it shared
wire          messages and descriptors over a Unix socket
owner         leases: which processes have which block open, until they close it or die
mapping       other processes' memory in this one: one mapping for everything in it
importer      opening and closing
pickling      whether pickling a buffer shares its memory
torch_form    PyTorch's bytes for the same
"""
