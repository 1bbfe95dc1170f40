"""The tables of `preload_checks.py`: what it found, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

MIB = 1 << 20
CAP = 8 << 30
FRAMEWORKS = ("torch", "cupy", "numba", "cuda_core", "jax")
ALLOCATORS = ("default", "ours", "default again", "ours again", "platform", "driver's pool")
LEDGERS = ("gpt2", "ddp", "cudnn", "jax_ledger", "cupy")

Found = dict[str, Any]


def mib(size: int | None) -> int | None:
    return None if size is None else size // MIB


def rows(*lines: list[Any]) -> Iterator[str]:
    """Return a table; its first line is the header."""
    for number, line in enumerate(lines):
        cells = [*line, *[None] * (len(lines[0]) - len(line))]
        yield "| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |"
        if number == 0:
            yield "|" + "---|" * len(line)


def in_mib(libraries: Found) -> str:
    return ", ".join(f"{name} {size / MIB:.0f}" for name, size in libraries.items())


def table_of_ways(found: Found) -> Iterator[str]:
    lines = []
    for name in (*FRAMEWORKS, "jax served"):
        told = found.get(f"ways {name}", {}).get("ways", {})
        asks = [function for function in told.get("ways", {}) if "Alloc" in function or function == "cuMemCreate"]
        used = {function: told["ways"][function] for function in asks if told["ways"][function]["calls"]}
        how = {f"{way} by {by}" for own in used.values() for way, by in own["found_by"].items()}
        calls = ", ".join(f"{function} {own['calls']}" for function, own in used.items())
        lines.append([name, calls, ", ".join(sorted(how)), in_mib(told.get("libraries", {}))])
    yield from rows(["program", "calls for memory", "looked up", "MiB by library"], *lines)


def table_of_pairs(found: Found) -> Iterator[str]:
    runs = {name: found[f"pairs {name}"].get("pairs", {}).get("times", {}) for name in ("native", "count", "serve")}
    lines = []
    for what in runs["native"]:
        times = [run.get(what, {}).get("median_ns") for run in runs.values()]
        faster = round(times[0] / times[2], 1) if times[2] else None
        lines.append([what, *times, faster])
    yield from rows(["pair", "native, ns", "counted, ns", "served, ns", "native / served"], *lines)


def table_of_jax(found: Found) -> Iterator[str]:
    runs = {name: found.get(f"jax {name}", {}) for name in ALLOCATORS}
    lines = []
    for name, run in runs.items():
        train, grow = run.get("train", {}), run.get("grow", {})
        lines.append([name, train.get("steps_per_s"), train.get("parameters"), train.get("losses"), grow.get("outputs"),
                      run.get("peak_mib train"), run.get("peak_mib grow")])  # fmt: skip
    yield from rows(["allocator", "steps a second, by block", "parameters", "losses", "growing sizes",
                     "peak MiB, training", "peak MiB, growing"], *lines)  # fmt: skip
    rate = {name: max(run["train"]["steps_per_s"]) for name, run in runs.items() if "train" in run}
    best = {name: max(rate.get(name, 0), rate.get(f"{name} again", 0)) for name in ("default", "ours")}
    parts = (("train", "parameters"), ("train", "losses"), ("grow", "outputs"))
    values = [{runs[name].get(part, {}).get(key) for name in ("default", "ours")} for part, key in parts]
    yield ""
    yield f"Equal in every bit: {'yes' if all(len(both) == 1 and None not in both for both in values) else 'no'}."
    for other in ("default", "platform", "driver's pool"):
        theirs = best.get(other) or rate.get(other)
        if theirs and best["ours"]:
            yield f"Ours over {other}: {best['ours'] / theirs:.4f}."


def table_of_thirty(found: Found) -> Iterator[str]:
    native, ours = (
        found.get(f"thirty {name}", {}).get("thirty", {}).get("outcomes", {}) for name in ("default", "ours")
    )
    same = [name for name in native if native[name] == ours.get(name)]
    yield f"{len(same)} of {len(native)} programs end the same, natively and on ours."
    different = [[name, native[name], ours.get(name)] for name in native if name not in same]
    if different:
        yield ""
        yield from rows(["program", "natively", "ours"], *different)


def table_of_both(found: Found) -> Iterator[str]:
    native, ours = found.get("both natively", {}), found.get("both ours", {})
    yield from rows(["", "natively", "ours, limit 9 GiB"],
                    ["ended", *("well" if "both" in run else run.get("ended") for run in (native, ours))],
                    ["peak MiB of the device", native.get("peak_mib both"), ours.get("peak_mib both")],
                    *([key, *(run.get("both", {}).get(key) for run in (native, ours))]
                      for key in ("total", "same", "back", "sums", "more")))  # fmt: skip
    yield ""
    told = ours.get("both", {}).get("told", [])
    lines = [
        [
            moment["moment"],
            [size // MIB for size in moment["free_total"]],
            in_mib(moment.get("tenants", {})),
            in_mib(moment.get("process", {}).get("libraries", {})),
        ]
        for moment in told
    ]
    yield from rows(["moment", "told: free, total MiB", "tenants, MiB", "libraries, MiB"], *lines)


def table_of_cap(found: Found) -> Iterator[str]:
    lines = []
    for name in ("natively", "torch", "cupy", "jax"):
        run = found.get(f"cap {name}", {})
        told = run.get("take_all", {})
        peak = run.get("peak_mib")
        process = None if peak is None else peak - (found.get("device MiB before") or 0)
        within = None if name == "natively" or process is None else "yes" if process <= CAP // MIB else "NO"
        what = {key: value for key, value in told.items() if key.endswith("_told")}
        lines.append([name, json.dumps(what), mib(told.get("got")), process, within, told.get("error", "none")])
    yield from rows(["program", "what it was told", "arrays, MiB", "peak, MiB", "within 8 GiB", "its error"], *lines)


def table_of_ledgers(found: Found) -> Iterator[str]:
    lines = []
    for name in LEDGERS:
        facts = found.get(f"ledger {name}", {}).get("ledger", {})
        if not facts.get("total"):
            lines.append([name, found.get(f"ledger {name}", {}).get("ended")])
            continue
        total, rest = facts["total"], facts["unexplained"]
        within = "yes" if rest <= max(total * 0.01, 64 * MIB) else "NO"
        lines.append([facts["program"], total // MIB, f"{1 - rest / total:.2%}", round(rest / MIB, 1), within,
                      facts["context"] // MIB, facts["modules"] // MIB, in_mib(facts["libraries"])])  # fmt: skip
    yield from rows(["program", "driver's figure, MiB", "named", "unexplained, MiB", "within 1 % or 64 MiB", "context",
                     "modules", "libraries"], *lines)  # fmt: skip


def table_of_costs(found: Found) -> Iterator[str]:
    names = ("start_s", "launch_ns", "driver_pair_us")
    runs = {way: [run["cost"] for key, run in found.items() if key.startswith(f"cost {way}") and "cost" in run]
            for way in ("native", "count")}  # fmt: skip
    lines = [[name, *([run[name] for run in of] for of in runs.values()),
              *(f"{min(run[name] for run in runs['count']) / min(run[name] for run in runs['native']):.3f}"
                for _ in range(1) if all(runs.values()))] for name in names]  # fmt: skip
    yield from rows(["what", "native", "counted", "best counted / best native"], *lines)


def table_of_suites(found: Found) -> Iterator[str]:
    for key, value in found.items():
        if key == "suite torch":
            yield f"PyTorch's own tests that both runs had time for: {json.dumps(value)}."
        elif key.startswith("suite numba"):
            yield f"numba-cuda's tests of memory: {' '.join(value['last'][-2:])}."


PARTS: dict[str, Callable[[Found], Iterator[str]]] = {
    "ways": table_of_ways, "pairs": table_of_pairs, "jax": table_of_jax, "thirty": table_of_thirty,
    "both": table_of_both, "cap": table_of_cap, "ledger": table_of_ledgers, "cost": table_of_costs,
    "suites": table_of_suites,
}  # fmt: skip
TITLES = {
    "ways": "The ways of frameworks to the driver", "pairs": "A pair of calls for memory",
    "jax": "JAX: a transformer trained with jit and donation, and a program of growing sizes",
    "thirty": "JAX: small programs", "both": "JAX and PyTorch in one process", "cap": "A limit of 8 GiB",
    "ledger": "The ledger", "cost": "What counting costs a program of PyTorch",
    "suites": "Tests of frameworks, counted",
}  # fmt: skip


def tables(found: Found) -> str:
    lines = ["# `allotment.preload` on a GPU", "", f"{found.get('machine', '')}", ""]
    for part, table in PARTS.items():
        if not any(key.startswith((f"{part} ", "suite ") if part == "suites" else f"{part} ") for key in found):
            continue
        try:
            own = list(table(found))
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
            own = [f"Not whole: {type(error).__name__}: {error}"]
        lines += [f"## {TITLES[part]}", "", *own, ""]
    return "\n".join(lines)
