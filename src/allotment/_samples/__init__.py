"""Recordings that come with the package, for trying things out.

`streams_prefetch.pickle.gz` is a memory snapshot of PyTorch 2.11 on an H200: a training job that prefetches its batches
on a separate stream, from the first request on, under default settings. It reserves almost twice what it uses, so other
settings help.
"""
