"""Uses memory through the named framework, then prints how the driver's functions were found and called."""

import json
import sys


def use_torch() -> None:
    import torch

    x = torch.ones(1 << 20, device="cuda")
    (x.view(1024, 1024) @ x.view(1024, 1024)).sum().item()


def use_cupy() -> None:
    import cupy

    (cupy.arange(1 << 20) + 1).sum().item()
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        cupy.ones(1 << 20).sum().item()


def use_numba() -> None:
    import numpy
    from numba import cuda

    cuda.to_device(numpy.ones(1 << 20)).copy_to_host()


def use_cuda_core() -> None:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    device.allocate(1 << 20, stream=stream).close(stream)
    stream.sync()


def use_jax() -> object:
    import jax

    x = jax.numpy.ones((1024, 1024))
    (x @ x).block_until_ready()
    return x


if __name__ == "__main__":
    kept = globals()[f"use_{sys.argv[1]}"]()  # until the figures are read
    import allotment
    from allotment._process.library import preloaded

    held = allotment.current("cuda:0").process()["libraries"]
    tenants = {name: figures["allocated_bytes"] for name, figures in allotment.current("cuda:0").tenants().items()}
    print(json.dumps({"ways": preloaded().ways(), "held": held, "tenants": tenants}))
