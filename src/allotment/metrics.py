"""Figures of allocators for Prometheus and other readers of OpenMetrics.

    import allotment.metrics

    prometheus_client.REGISTRY.register(allotment.metrics.Collector())   # in a program that has an endpoint
    allotment.metrics.serve(9400)                                        # in one that has none

or, without a change to any program, for all processes of this user that announce themselves (ALLOTMENT_MONITOR=1):

    python -m allotment.metrics --port 9400

A scrape reads the figures. Every sample has the labels `device`, `tenant` and `tag`; a label that does not apply is
empty. Reserved memory is divided by tag and allocated memory by tenant, so that the samples of a device add up to the
whole.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from allotment._adapters.frameworks import import_framework
from allotment._allocators.current import all_allocators
from allotment._monitor.asking import ask_all
from allotment._monitor.figures import Figures, Report, figures_of

__all__ = ["Collector", "Server", "serve"]

_client = import_framework("allotment.metrics", "prometheus_client", "'allotment[metrics]'")
_families = import_framework("allotment.metrics", "prometheus_client.metrics_core", "'allotment[metrics]'")

LABELS = ["device", "tenant", "tag"]

GAUGES = {
    "allotment_reserved_bytes": "Bytes reserved from the device, in use or not, by tag",
    "allotment_allocated_bytes": "Bytes of blocks in use, by tenant",
    "allotment_active_bytes": "Bytes of blocks in use or waiting for streams to finish with them",
    "allotment_waste_bytes": "Bytes reserved beyond the requested ones",
    "allotment_limit_bytes": "Limit of an allocator, a tenant or a tag; absent where there is none",
    "allotment_paused_bytes": "Bytes of a paused tag that were released to the device",
    "allotment_device_free_bytes": "Bytes free on the device, as the device reports it",
    "allotment_device_total_bytes": "Total bytes of the device, as the device reports it",
}
COUNTERS = {
    "allotment_ooms": "Requests that failed because memory ran out",
    "allotment_retries": "Requests that the device refused until cached memory was released",
    "allotment_requests": "Requests served",
}


class Collector:
    """Collector()\n--\n
    All allocators of this process, as a custom collector: `registry.register(Collector())`.

    A scrape reads each allocator's counters under its lock, and visits every block to tell tenants apart. Safe to use
    from several threads.
    """

    def collect(self) -> Iterator[Any]:
        """Yield the metric families for prometheus_client."""
        yield from _collected(((), figures_of(each)) for each in all_allocators())

    def describe(self) -> Iterable[Any]:
        """Describe nothing, so that registering the collector reads no allocator."""
        return []


class _OfProcesses:
    """The figures of every process that announces itself, with a label `pid`."""

    def collect(self) -> Iterator[Any]:
        reports = [each for each in ask_all() if isinstance(each, Report)]
        listed = [((str(each.pid),), figures) for each in reports for figures in each.allocators]
        yield from _collected(listed, ["pid"])

    def describe(self) -> Iterable[Any]:
        return []


def _collected(listed: Iterable[tuple[tuple[str, ...], Figures]], more_labels: Sequence[str] = ()) -> Iterator[Any]:
    sums: dict[str, dict[tuple[str, ...], int]] = {name: {} for name in [*GAUGES, *COUNTERS]}
    for process, figures in listed:
        for name, tenant, tag, value in _samples(figures):
            key = (*process, figures.device, tenant, tag)
            of_device = name.startswith("allotment_device_")  # the same for all allocators there
            sums[name][key] = value if of_device else sums[name].get(key, 0) + value
    for kinds, kind in ((GAUGES, _families.GaugeMetricFamily), (COUNTERS, _families.CounterMetricFamily)):
        for name, text in kinds.items():
            family = kind(name, text, labels=[*more_labels, *LABELS])
            for labels, value in sums[name].items():
                family.add_metric(labels, value)
            yield family


def _samples(figures: Figures) -> Iterator[tuple[str, str, str, int]]:
    """Yield (name, tenant, tag, value) of one allocator."""
    yield from _divided("allotment_reserved_bytes", figures.reserved_bytes, figures.tags, by_tag=True)
    yield from _divided("allotment_allocated_bytes", figures.allocated_bytes, figures.tenants, by_tag=False)
    for name, value in (
        ("allotment_active_bytes", figures.active_bytes),
        ("allotment_waste_bytes", figures.waste_bytes),
        ("allotment_limit_bytes", figures.limit_bytes),
        ("allotment_device_free_bytes", figures.device_free_bytes),
        ("allotment_device_total_bytes", figures.device_total_bytes),
        ("allotment_ooms", figures.ooms),
        ("allotment_retries", figures.retries),
        ("allotment_requests", figures.requests),
    ):
        if value is not None:
            yield name, "", "", value
    for tag in figures.tags:
        yield "allotment_paused_bytes", "", tag, figures.paused.get(tag, 0)
    for tag, limit in figures.tag_limits.items():
        yield "allotment_limit_bytes", "", tag, limit
    for tenant, limit in figures.tenant_limits.items():
        yield "allotment_limit_bytes", tenant, "", limit


def _divided(name: str, whole: int, parts: dict[str, int], *, by_tag: bool) -> Iterator[tuple[str, str, str, int]]:
    named = {part: size for part, size in parts.items() if part}
    yield name, "", "", max(whole - sum(named.values()), 0)
    for part, size in named.items():
        yield (name, "", part, size) if by_tag else (name, part, "", size)


class Server:
    """An endpoint that runs until it is closed; `serve` makes one."""

    def __init__(self, collector: Any, port: int, address: str) -> None:
        registry = _client.CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = _client.start_http_server(port, address, registry)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening; does nothing the second time."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(port: int = 9400, address: str = "127.0.0.1") -> Server:
    """Serve this process's figures at http://ADDRESS:PORT/metrics, on a separate thread.

    The form is OpenMetrics if the client asks for it, otherwise Prometheus' text form. Port 0 means any free port.
    Other machines reach it only if `address` is one of this machine's, or "0.0.0.0". Raises OSError if the port is
    taken.
    """
    return Server(Collector(), port, address)


def _main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m allotment.metrics",
        description="Serve figures of all processes of this user that announce themselves (ALLOTMENT_MONITOR=1).",
    )
    parser.add_argument("--port", type=int, default=9400)
    parser.add_argument("--address", default="127.0.0.1")
    given = parser.parse_args(arguments)
    with Server(_OfProcesses(), given.port, given.address) as server:
        print(f"http://{given.address}:{server.port}/metrics; Ctrl+C ends it.", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.exit(0)


if __name__ == "__main__":
    _main()
