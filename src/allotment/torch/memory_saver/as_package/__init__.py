"""A folder for PYTHONPATH: in it, `torch_memory_saver` is `allotment.torch.memory_saver`."""
