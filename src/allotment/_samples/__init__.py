"""Recordings that come with the package, for trying things out.

`graph_train.pickle.gz` is a memory snapshot of PyTorch 2.11 on an H200: training steps captured into CUDA graphs of
three sizes, from the first request on, under default settings.
"""
