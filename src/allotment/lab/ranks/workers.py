"""Runs a function on each of many files in other processes, on this machine or on a Dask cluster.

The function takes a file's name; it and its result must be picklable. A file that cannot be read has an error instead
of a result. If a process dies, another one repeats its unfinished files; a file gets an error only if several processes
died on it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from allotment.errors import AllotmentError, RequestError, UnsupportedError

__all__ = ["Done", "for_each_file"]

T = TypeVar("T")
MOST_DEATHS = 3
"""How many processes may die on one file."""
CONNECTING_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The outcome of one file: a value, or an error as text."""

    file: str
    value: T | None
    error: str | None


def for_each_file(
    files: Sequence[str],
    work: Callable[[str], T],
    cluster: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> list[Done[T]]:
    """Return `work(file)` for each file, in their order.

    `cluster` is the address of a Dask scheduler whose workers see the same files under the same names. Raises
    UnsupportedError without Dask, RequestError if no scheduler is at that address.
    """
    if cluster is not None:
        return _on_cluster(cluster, files, work, progress)
    if len(files) == 1:
        return [_attempt(work, files[0])]
    return _in_processes(files, work, progress)


def _attempt(work: Callable[[str], T], file: str) -> Done[T]:
    try:
        return Done(file, work(file), None)
    except AllotmentError as error:
        return Done(file, None, str(error))
    except OSError as error:
        return Done(file, None, f"{error.filename or file}: {error.strerror or error}")
    except MemoryError as error:
        return Done(file, None, f"{file}: {error or 'no memory for it'}")


def _died(file: str) -> Done[Any]:
    return Done(file, None, f"{file}: {MOST_DEATHS} processes died while reading it, perhaps for lack of memory")


def _in_processes(files: Sequence[str], work: Callable[[str], T], progress: Callable[[str], None]) -> list[Done[T]]:
    done: dict[str, Done[T]] = {}
    deaths = 0
    while len(done) < len(files):
        left = [file for file in files if file not in done]
        # After a death, one file at a time, to know which file kills the next process.
        at_once = min(len(left), os.cpu_count() or 1) if deaths == 0 else 1
        # Spawned, not forked: a copy of this process would have the locks of its threads.
        with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = {pool.submit(_attempt, work, file): file for file in (left if deaths == 0 else left[:1])}
            try:
                for future in as_completed(waiting):
                    done[waiting[future]] = future.result()
                    deaths = 0 if at_once == 1 else deaths
                    progress(f"{len(done)} of {len(files)} files")
            except BrokenProcessPool:
                deaths += 1
                if deaths > MOST_DEATHS:
                    done[left[0]] = _died(left[0])
                    deaths = 1
    return [done[file] for file in files]


def _on_cluster(
    address: str, files: Sequence[str], work: Callable[[str], T], progress: Callable[[str], None]
) -> list[Done[T]]:
    try:
        from distributed import Client, KilledWorker
        from distributed import as_completed as as_done
    except ImportError:
        raise UnsupportedError("--cluster needs Dask: pip install 'allotment[dask]'") from None
    done: dict[str, Done[T]] = {}
    deaths = dict.fromkeys(files, 0)
    try:
        client = Client(address, timeout=CONNECTING_SECONDS)
    except (OSError, ValueError) as error:
        raise RequestError(f"no Dask scheduler at {address}: {error}") from None
    with client:
        futures = {client.submit(_attempt, work, file, pure=False): file for file in files}
        waiting = as_done(list(futures))
        for future in waiting:
            file = futures[future]
            try:
                done[file] = future.result()
            except KilledWorker:
                deaths[file] += 1
                if deaths[file] < MOST_DEATHS:
                    again = client.submit(_attempt, work, file, pure=False)
                    futures[again] = file
                    waiting.add(again)
                else:
                    done[file] = _died(file)
            except ImportError as error:
                raise UnsupportedError(f"the workers of {address} cannot import what they need: {error}") from None
            progress(f"{len(done)} of {len(files)} files")
    return [done[file] for file in files]
