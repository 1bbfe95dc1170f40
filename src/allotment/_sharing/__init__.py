"""Blocks in more than one process.

handle        a block's name for other processes: bytes, checked
identity      this process, user and boot; which device is meant
device_calls  the contract's operations that sharing takes
ordering      work that was given to a stream before a block was shared is waited for by who opens it
wire          messages and descriptors over a Unix socket
owner         leases: who has which block open, until they close it or die
mapping       other processes' memory in this one: one mapping for all that lies in it
importer      opening and closing
pickling      whether a buffer that is pickled travels as the same memory
torch_form    PyTorch's bytes for the same
"""
