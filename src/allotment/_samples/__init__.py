"""Recordings that come with the package, for trying things out.

`streams_prefetch.pickle.gz` is a memory snapshot of PyTorch 2.11 on an H200: a training job whose batches are fetched
ahead on a stream of their own, from the first request on, under default settings. Settings help it: it reserves almost
twice what it uses.
"""
