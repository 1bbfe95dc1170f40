"""Programs that `preload_checks.py` starts, natively and under `allotment.preload`: each prints lines of JSON.

    python benchmarks/gpu/preload_programs.py NAME [ARGUMENT ...]

Hashes are of whole contents, so equal means equal bit by bit. With PRELOAD_CHECKS_WAIT in the environment a program
imports what it needs, says so, and goes on after a line on standard input. PRELOAD_CHECKS_PART=1000 makes all sizes a
thousandth, for a trial without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

MIB = 1 << 20
PART = int(os.environ.get("PRELOAD_CHECKS_PART", "1"))  # all sizes are divided by this


def tell(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, "at": time.time(), **facts}), flush=True)


def digest(*arrays: Any) -> str:
    import numpy

    whole = hashlib.sha256()
    for array in arrays:
        whole.update(numpy.ascontiguousarray(numpy.asarray(array)).tobytes())
    return whole.hexdigest()[:16]


def ledger() -> dict[str, Any] | None:
    """What the process holds, if it was started with the library."""
    if "ALLOTMENT_PRELOAD" not in os.environ:
        return None
    import allotment

    return allotment.current("cuda:0").process()


# --- JAX: a transformer, growing sizes ---


def transformer(jax: Any, layers: int, width: int, heads: int, vocabulary: int) -> tuple[Any, Callable[..., Any]]:
    """Parameters and a training step that donates them."""
    jnp = jax.numpy
    keys = iter(jax.random.split(jax.random.key(0), 8 * layers + 2))

    def weight(*shape: int) -> Any:
        return 0.02 * jax.random.normal(next(keys), shape, dtype=jnp.float32)

    parameters = {
        "table": weight(vocabulary, width),
        "layers": [
            {"qkv": weight(width, 3 * width), "out": weight(width, width), "up": weight(width, 4 * width),
             "down": weight(4 * width, width)}
            for _ in range(layers)
        ],
    }  # fmt: skip

    def normal(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss_of(parameters: Any, tokens: Any) -> Any:
        x = parameters["table"][tokens[:, :-1]].astype(jnp.bfloat16)
        batch, length, _ = x.shape
        mask = jnp.tril(jnp.ones((length, length), dtype=bool))
        for layer in parameters["layers"]:
            cast = {name: value.astype(jnp.bfloat16) for name, value in layer.items()}
            q, k, v = jnp.split(normal(x) @ cast["qkv"], 3, axis=-1)
            q, k, v = (part.reshape(batch, length, heads, width // heads) for part in (q, k, v))
            scores = jnp.einsum("bihd,bjhd->bhij", q, k) / (width // heads) ** 0.5
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
            x = x + jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, length, width) @ cast["out"]
            x = x + jax.nn.gelu(normal(x) @ cast["up"]) @ cast["down"]
        logits = (normal(x) @ parameters["table"].T.astype(jnp.bfloat16)).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        return -picked.mean()

    def step(parameters: Any, moments: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, tokens)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.01 * m, parameters, moments), moments, loss

    return parameters, jax.jit(step, donate_argnums=(0, 1))


def train(jax: Any, steps: int) -> None:
    small = jax.default_backend() == "cpu"
    layers, width, length, batch = (2, 64, 32, 2) if small else (8, 1024, 512, 16)
    vocabulary = 1000 if small else 32000
    parameters, step = transformer(jax, layers, width, 4 if small else 16, vocabulary)
    moments = jax.tree.map(jax.numpy.zeros_like, parameters)
    batches = [jax.random.randint(jax.random.key(100 + number), (batch, length), 0, vocabulary) for number in range(4)]
    losses = []
    for number in range(3):
        parameters, moments, loss = step(parameters, moments, batches[number % 4])
    jax.block_until_ready(parameters)
    tell("begin", part="train")
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        for number in range(steps):
            parameters, moments, loss = step(parameters, moments, batches[number % 4])
            losses.append(loss)
        jax.block_until_ready(parameters)
        rates.append(steps / (time.perf_counter() - start))
    tell("end", part="train")
    stats = jax.devices()[0].memory_stats() or {}
    tell("train", steps_per_s=[round(rate, 3) for rate in rates], parameters=digest(*jax.tree.leaves(parameters)),
         losses=digest(*losses), last_loss=float(losses[-1]).hex(), peak_bytes_in_use=stats.get("peak_bytes_in_use"),
         ledger=ledger())  # fmt: skip


def grow(jax: Any) -> None:
    """Sizes that only grow: a cache of whole blocks cannot use a smaller one again."""
    jnp = jax.numpy
    small = jax.default_backend() == "cpu"
    work = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(axis=0))
    found = []
    tell("begin", part="grow")
    start = time.perf_counter()
    for number in range(12):
        rows = (64 if small else 4096) + number * (32 if small else 1536)
        x = jax.random.normal(jax.random.key(number), (rows, 32 if small else 2048))
        for _ in range(8):
            found.append(work(x))
    hashed = digest(*found)
    tell("end", part="grow")
    tell("grow", seconds=round(time.perf_counter() - start, 3), outputs=hashed)


# --- thirty small programs ---


def thirty(jax: Any) -> dict[str, Callable[[], Any]]:
    import numpy as np

    jnp, lax = jax.numpy, jax.lax
    on_cpu = jax.default_backend() == "cpu"

    def donated_chain() -> Any:
        f = jax.jit(lambda x: x * 1.5 + 1, donate_argnums=0)
        x = jnp.arange(1 << 18, dtype=jnp.float32)
        for _ in range(10):
            x = f(x)
        return x

    def donated_twice() -> Any:
        f = jax.jit(lambda x: x + 1, donate_argnums=0)
        x = jnp.ones(1000)
        f(x)
        return f(x)

    def donated_tree() -> Any:
        f = jax.jit(lambda t: {k: v * 2 for k, v in t.items()}, donate_argnums=0)
        return list(f({"a": jnp.ones((300, 300)), "b": jnp.arange(77.0)}).values())

    def put_and_back() -> Any:
        return [np.asarray(jax.device_put(np.arange(n, dtype=np.int32))) for n in (1, 7, 1000, 1 << 20)]

    def put_many() -> Any:
        return jnp.stack([jax.device_put(np.full((100,), n, np.float32)) for n in range(200)]).sum(0)

    def scan() -> Any:
        return lax.scan(lambda c, x: (c * 0.9 + x, c), jnp.zeros(128), jnp.ones((500, 128)))

    def scan_donated() -> Any:
        f = jax.jit(lambda c, xs: lax.scan(lambda c, x: (c + x, c.sum()), c, xs), donate_argnums=0)
        return f(jnp.zeros((64, 64)), jnp.ones((100, 64, 64)))

    def while_loop() -> Any:
        return lax.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] * 1.01), (0, jnp.ones(1000)))[1]

    def conditional() -> Any:
        f = jax.jit(lambda x: lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x))
        return [f(jnp.ones(10)), f(-jnp.ones(10))]

    def normal() -> Any:
        return jax.random.normal(jax.random.key(5), (1000, 100))

    def permutation() -> Any:
        return jax.random.permutation(jax.random.key(6), 10000)

    def split_keys() -> Any:
        return jax.vmap(lambda k: jax.random.uniform(k, (10,)))(jax.random.split(jax.random.key(7), 64))

    def gradient() -> Any:
        return jax.grad(lambda x: (jnp.sin(x) ** 2).sum())(jnp.linspace(0, 3, 5000))

    def hessian() -> Any:
        return jax.hessian(lambda x: (x**3).sum() + x[0] * x[1])(jnp.arange(20.0))

    def checkpointed() -> Any:
        f = jax.checkpoint(lambda x: jnp.tanh(x @ x))
        return jax.grad(lambda x: f(f(f(x))).sum())(jnp.eye(200) * 0.5)

    def vmapped() -> Any:
        return jax.vmap(lambda a, b: a @ b)(jnp.ones((32, 16, 16)), jnp.ones((32, 16, 8)))

    def host_offload() -> Any:
        if on_cpu:
            return jnp.arange(1000.0)
        there = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        back = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
        moved = jax.device_put(jnp.arange(1 << 20, dtype=jnp.float32), there)
        return jax.device_put(moved, back) + 1

    def too_large() -> Any:
        return jnp.zeros((1 << 40,), dtype=jnp.float32).block_until_ready() if not on_cpu else jnp.zeros(3)

    def recovered() -> Any:
        kept = jnp.arange(100000.0)
        with contextlib.suppress(Exception):
            if not on_cpu:
                jnp.ones((1 << 38,), dtype=jnp.float32).block_until_ready()
        return kept * 2

    def filled_and_recovered() -> Any:
        """Arrays until the device is full, then the same again: how many differs, what is in them does not."""
        if on_cpu:
            return [True, jnp.zeros(3)]
        counts = []
        for _ in range(2):
            held: list[Any] = []
            with contextlib.suppress(Exception):
                while len(held) < 200:
                    held.append(jnp.full((1 << 28,), len(held), dtype=jnp.float32).block_until_ready())
            counts.append(len(held))
            first = np.asarray(held[0][:4]), np.asarray(held[-1][:1]) == len(held) - 1
            held.clear()
        return [counts[0] == counts[1], *first]

    def threads() -> Any:
        results: list[Any] = [None] * 8

        def work(number: int) -> None:
            x = jnp.full((512, 512), float(number))
            for _ in range(20):
                x = jnp.sin(x) + number
            results[number] = np.asarray(x)

        running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return results

    def deleted() -> Any:
        x = jnp.ones(1 << 20)
        x.delete()
        return x + 1

    def deleted_while_used() -> Any:
        x = jnp.ones((2000, 2000))
        y = x @ x @ x
        x.delete()
        z = jnp.zeros((2000, 2000))
        return [y, z]

    def views() -> Any:
        x = jnp.arange(10000.0).reshape(100, 100)
        return [x[3:50, ::2], x.T, x[:, None]]

    def updates() -> Any:
        x = jnp.zeros((1000, 10))
        return x.at[::3].set(5).at[5].add(jnp.arange(10.0))

    def sorting() -> Any:
        return jnp.sort(jax.random.uniform(jax.random.key(8), (100000,)))

    def solving() -> Any:
        a = jax.random.normal(jax.random.key(9), (200, 200)) + 10 * jnp.eye(200)
        return jnp.linalg.solve(a, jnp.ones(200))

    def convolution() -> Any:
        x, k = jnp.ones((4, 3, 64, 64)), jnp.ones((8, 3, 3, 3))
        return lax.conv_general_dilated(x, k, (1, 1), "SAME")

    def to_numpy_dlpack() -> Any:
        x = jnp.arange(5000.0)
        return np.from_dlpack(x) if on_cpu else np.asarray(jnp.from_dlpack(x))

    def torch_to_jax() -> Any:
        import torch

        t = torch.arange(100000, dtype=torch.float32, device="cpu" if on_cpu else "cuda") * 2
        return jax.dlpack.from_dlpack(t) + 1

    def jax_to_torch() -> Any:
        import torch

        x = jnp.arange(100000.0) * 3
        return (torch.from_dlpack(x) + 1).cpu().numpy()

    def wrong_shape() -> Any:
        return jnp.ones((3, 4)) @ jnp.ones((5, 6))

    def callback() -> Any:
        shape = jax.ShapeDtypeStruct((100,), jnp.float32)
        return jax.jit(lambda x: jax.pure_callback(lambda y: np.asarray(y) * 2, shape, x))(jnp.ones(100))

    found = [
        donated_chain, donated_twice, donated_tree, put_and_back, put_many, scan, scan_donated, while_loop, conditional,
        normal, permutation, split_keys, gradient, hessian, checkpointed, vmapped, host_offload, too_large, recovered,
        filled_and_recovered, threads, deleted, deleted_while_used, views, updates, sorting, solving, convolution,
        to_numpy_dlpack, torch_to_jax, jax_to_torch, wrong_shape, callback,
    ]  # fmt: skip
    return {function.__name__: function for function in found}


def run_thirty() -> None:
    import jax

    found = {}
    for name, function in thirty(jax).items():
        try:
            result = function()
            leaves = jax.tree.leaves(result)
            found[name] = digest(*leaves)
        except Exception as error:
            # What an allocator says of its own state differs; which error it is does not.
            found[name] = f"{type(error).__name__}: {str(error).split(':')[0].split(chr(10))[0][:60]}"
        gc.collect()
    tell("thirty", outcomes=found)


def jax_program(*arguments: str) -> None:
    import jax

    steps = int(arguments[0]) if arguments else 20
    tell("jax", version=jax.__version__, backend=jax.default_backend(),
         allocator=os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default"))  # fmt: skip
    train(jax, steps)
    grow(jax)


# --- JAX and PyTorch on one budget ---


def both(*arguments: str) -> None:
    ours = "ours" in arguments
    if ours:
        import allotment.torch

        allotment.torch.install()
    import jax
    import torch

    jnp = jax.numpy
    gib = (1 << 30) // PART
    jax_parts, torch_parts = [], []
    told = []

    def note(moment: str) -> None:
        facts: dict[str, Any] = {"moment": moment, "free_total": list(torch.cuda.mem_get_info())}
        if ours:
            allocator = allotment.current("cuda:0")
            facts["tenants"] = {n: t["allocated_bytes"] for n, t in allocator.tenants().items()}
            facts["process"] = allocator.process()
        told.append(facts)

    note("start")
    tell("begin", part="both")
    for number in range(6):
        jax_parts.append(jnp.full((gib // 4,), float(number)).block_until_ready())
    note("JAX has 6 GiB")
    total = float(sum(part[:1000].sum() for part in jax_parts))
    kept = jax_parts.pop()
    for part in jax_parts:
        part.delete()
    jax_parts.clear()
    note("JAX has let 5 GiB go")
    for number in range(6):
        torch_parts.append(torch.full((gib // 4,), float(number), device="cuda"))
    note("PyTorch has 6 GiB")
    there = torch.from_dlpack(kept)
    same = bool((there[:1000] == 5).all())
    back = jax.dlpack.from_dlpack(torch_parts[3][:1000].contiguous())
    sums = [float(part[:1000].sum()) for part in torch_parts]
    torch_parts.clear()
    del there
    more = [jnp.full((gib // 4,), 7.0).block_until_ready() for _ in range(5)]
    note("PyTorch has let its memory go, JAX has 6 GiB again")
    tell("end", part="both")
    tell("both", total=total, same=same, back=digest(back), sums=sums, more=digest(*(part[:10] for part in more)),
         told=told)  # fmt: skip


# --- the ledger on five programs ---


def gpt2_like(steps: int = 8) -> None:
    import torch

    try:
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config()).cuda()
        work = lambda tokens: model(tokens, labels=tokens).loss  # noqa: E731
    except ImportError:
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        model = torch.nn.TransformerEncoder(layer, 12).cuda()
        table = torch.nn.Embedding(50257, 768).cuda()
        work = lambda tokens: model(table(tokens)).square().mean()  # noqa: E731
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = work(torch.randint(0, 50257, (8, 512), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    tell("ledger", program="GPT-2", **(ledger() or {}))


def ddp() -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096).cuda())
    for _ in range(5):
        model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
    big = torch.ones(64 * MIB // 4 // PART, device="cuda")
    dist.all_reduce(big)
    torch.cuda.synchronize()
    tell("ledger", program="DDP", **(ledger() or {}))
    dist.destroy_process_group()


def cudnn_heavy() -> None:
    import torch

    torch.backends.cudnn.benchmark = True
    sizes = (3, 64, 128, 256, 256)
    model = torch.nn.Sequential(*[torch.nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes)]).cuda()
    for _ in range(4):
        model(torch.randn(16, 3, 128, 128, device="cuda")).square().mean().backward()
    torch.cuda.synchronize()
    tell("ledger", program="cuDNN", **(ledger() or {}))


def jax_ledger() -> None:
    import jax

    x = jax.random.normal(jax.random.key(0), (8192, 8192))
    y = jax.jit(lambda x: jax.numpy.tanh(x @ x) @ x)(x)
    y.block_until_ready()
    tell("ledger", program="JAX", **(ledger() or {}))


def cupy_ledger() -> None:
    import cupy

    x = cupy.random.rand(8192, 8192, dtype=cupy.float32)
    y = cupy.tanh(x @ x) @ x
    z = cupy.fft.fft2(y[:2048, :2048])
    cupy.linalg.solve(y[:512, :512], z.real[:512, 0].astype(cupy.float32))
    cupy.cuda.Device().synchronize()
    tell("ledger", program="CuPy", **(ledger() or {}))


# --- a program that takes all there is ---


def take_all(name: str) -> None:
    import torch

    block = 128 * MIB // PART
    told: dict[str, Any] = {}
    torch.cuda.init()
    told["torch_told"] = list(torch.cuda.mem_get_info())
    held: list[Any] = []
    if name == "torch":
        make = lambda: torch.ones(block // 4, device="cuda")  # noqa: E731
    elif name == "cupy":
        import cupy

        told["cupy_told"] = list(cupy.cuda.runtime.memGetInfo())
        make = lambda: cupy.ones(block // 4, dtype=cupy.float32)  # noqa: E731
    else:
        import jax

        x = jax.numpy.ones((4096, 4096))
        (x @ x).block_until_ready()
        told["jax_told"] = jax.devices()[0].memory_stats()
        make = lambda: jax.numpy.ones((block // 4,)).block_until_ready()  # noqa: E731
    tell("begin", part=f"take_all {name}")
    try:
        while len(held) < 1200:
            held.append(make())
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    told["got"] = len(held) * block
    told["sum"] = float((held[0] + held[-1])[:8].sum()) if name != "torch" else held[0].add_(held[-1])[:8].sum().item()
    time.sleep(0.3)
    tell("end", part=f"take_all {name}")
    told["ledger"] = ledger()
    tell("take_all", name=name, **told)


# --- times ---

PAIRS_IN_C = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int pairs(size_t size, int count, int is_async, double* ns) {
    void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*allocate)(uint64_t*, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int (*release)(uint64_t) = dlsym(cuda, "cuMemFree_v2");
    int (*allocate_async)(uint64_t*, size_t, void*) = dlsym(cuda, "cuMemAllocAsync");
    int (*release_async)(uint64_t, void*) = dlsym(cuda, "cuMemFreeAsync");
    uint64_t address;
    for (int at = 0; at < count; at++) {
        double start = now();
        int result = is_async ? allocate_async(&address, size, 0) : allocate(&address, size);
        if (!result) result = is_async ? release_async(address, 0) : release(address);
        ns[at] = now() - start;
        if (result) return result;
    }
    return 0;
}
"""


def pairs(library: str) -> None:
    functions, cuda = ctypes.CDLL(library), ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxPushCurrent_v2(context)
    found = {}
    for label, size in (("1 KiB", 1024), ("1 MiB", MIB), ("64 MiB", 64 * MIB)):
        for kind in (0, 1):
            count = 1000
            ns = (ctypes.c_double * count)()
            functions.pairs(ctypes.c_size_t(size), 50, kind, ns)
            result = functions.pairs(ctypes.c_size_t(size), count, kind, ns)
            values = sorted(ns)
            found[f"{'async' if kind else 'plain'} {label}"] = {
                "result": result, "median_ns": round(values[count // 2]), "p99_ns": round(values[count * 99 // 100]),
            }  # fmt: skip
    start = time.perf_counter_ns()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for _ in range(200):
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    found["cuMemGetInfo"] = {"median_ns": (time.perf_counter_ns() - start) // 200}
    tell("pairs", times=found)


def cost() -> None:
    """What a program of PyTorch takes: its first use of the GPU, small kernels, steps that allocate from the driver."""
    import torch

    begun = time.perf_counter()
    x = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    started = time.perf_counter() - begun
    for _ in range(2000):
        x = x + 1
    torch.cuda.synchronize()
    launches = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20000):
            x = x + 1
        torch.cuda.synchronize()
        launches.append((time.perf_counter() - start) / 20000 * 1e9)
    steps = []
    for _ in range(5):
        start = time.perf_counter()
        for number in range(20):
            torch.empty((number + 1) * 32 * MIB // PART, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        steps.append((time.perf_counter() - start) / 20 * 1e6)
    tell("cost", start_s=round(started, 3), launch_ns=round(min(launches)), driver_pair_us=round(min(steps), 1))


def ways(name: str) -> None:
    """Which functions of the driver a framework calls, and how it looked them up."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu" / "programs"))
    import ways_to_the_driver

    kept = getattr(ways_to_the_driver, f"use_{name}")()
    from allotment._process.library import preloaded

    library = preloaded()
    tell("ways", ways=library.ways() if library is not None else {}, **(ledger() or {}))
    del kept


PROGRAMS: dict[str, Callable[..., None]] = {
    "jax": jax_program, "thirty": run_thirty, "both": both, "gpt2": gpt2_like, "ddp": ddp, "cudnn": cudnn_heavy,
    "jax_ledger": jax_ledger, "cupy": cupy_ledger, "take_all": take_all, "pairs": pairs, "cost": cost, "ways": ways,
}  # fmt: skip
MODULES = {
    "jax": ["jax"], "thirty": ["jax", "torch"], "both": ["jax", "torch"], "gpt2": ["torch", "transformers"],
    "ddp": ["torch"], "cudnn": ["torch"], "jax_ledger": ["jax"], "cupy": ["cupy"], "take_all": ["torch"],
    "cost": ["torch"],
}  # fmt: skip

if __name__ == "__main__":
    chosen, *rest = sys.argv[1:]
    if "PRELOAD_CHECKS_WAIT" in os.environ:
        for module in [*MODULES.get(chosen, []), *[name for name in rest if name in ("jax", "cupy", "torch")]]:
            with contextlib.suppress(Exception):  # the program itself will say it
                importlib.import_module(module)
        tell("ready")
        sys.stdin.readline()
    PROGRAMS[chosen](*rest)
