"""Figures for Prometheus: which are exported under which labels; they add up; a real server can read them."""

import gc
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import allotment
from helpers.peer import Peer

prometheus = pytest.importorskip("prometheus_client", reason="the package prometheus_client is not installed")
metrics = pytest.importorskip("allotment.metrics")

pytestmark = pytest.mark.threads

MIB = 1 << 20
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
OPENER = build_opener(ProxyHandler({}))


def samples(device):
    """Return what is exported for devices of this name: tests use sizes that no other test has."""
    gc.collect()
    return {
        (sample.name, sample.labels["tenant"], sample.labels["tag"]): sample.value
        for family in metrics.Collector().collect()
        for sample in family.samples
        if sample.labels["device"] == device
    }


def fetch(address, **headers):
    with OPENER.open(Request(address, headers=headers), timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_figures_are_divided_by_tag_and_tenant_and_add_up():
    allocator = allotment.Allocator(allotment.SimulatedDevice("1001MiB"), limit="512MiB")
    name = allocator.device.name
    kept = [allocator.malloc(3 * MIB), allocator.tenant("trainer").malloc(5 * MIB)]
    allocator.tenant("trainer").limit = "64MiB"
    with allotment.tag("weights"):
        kept.append(allocator.malloc(30 * MIB))
    allocator.set_limit("weights", hard="100MiB")
    with pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc("600MiB")
    found, stats = samples(name), allocator.stats()
    reserved = [value for (family, _, _), value in found.items() if family == "allotment_reserved_bytes"]
    allocated = [value for (family, _, _), value in found.items() if family == "allotment_allocated_bytes"]
    assert sum(reserved) == stats["reserved_bytes.all.current"]
    assert sum(allocated) == stats["allocated_bytes.all.current"] == 38 * MIB
    assert found["allotment_reserved_bytes", "", "weights"] == 40 * MIB
    assert found["allotment_allocated_bytes", "trainer", ""] == 5 * MIB
    assert found["allotment_active_bytes", "", ""] == 38 * MIB
    assert found["allotment_waste_bytes", "", ""] == sum(reserved) - 38 * MIB
    assert found["allotment_limit_bytes", "", ""] == 512 * MIB
    assert found["allotment_limit_bytes", "trainer", ""] == 64 * MIB
    assert found["allotment_limit_bytes", "", "weights"] == 100 * MIB
    assert found["allotment_ooms_total", "", ""] == 1
    assert found["allotment_retries_total", "", ""] == stats["num_alloc_retries"]
    assert found["allotment_requests_total", "", ""] == 3
    assert found["allotment_paused_bytes", "", "weights"] == 0
    allocator.pause("weights")
    found = samples(name)
    assert found["allotment_paused_bytes", "", "weights"] == 40 * MIB
    assert found["allotment_reserved_bytes", "", "weights"] == 0
    assert found["allotment_waste_bytes", "", ""] == sum(reserved) - 38 * MIB
    allocator.resume("weights")
    for address in kept:
        allocator.free(address)


def test_allocators_on_one_device_are_one_series():
    device = allotment.SimulatedDevice("1002MiB")
    two = [allotment.Allocator(device), allotment.Allocator(device)]
    addresses = [each.malloc(3 * MIB) for each in two]
    found = samples(device.name)
    assert found["allotment_allocated_bytes", "", ""] == 6 * MIB
    assert found["allotment_device_total_bytes", "", ""] == 1002 * MIB
    assert ("allotment_limit_bytes", "", "") not in found
    for each, address in zip(two, addresses, strict=True):
        each.free(address)


def test_a_deleted_allocator_is_not_exported_and_one_without_tags_and_tenants_is():
    allocator = allotment.AsyncAllocator(allotment.SimulatedDevice("65MiB"))
    name = allocator.device.name
    address = allocator.malloc(MIB)
    assert samples(name)["allotment_allocated_bytes", "", ""] == MIB
    allocator.free(address)
    del allocator
    assert samples(name) == {}


def test_ten_thousand_labels_of_any_text_are_exported():
    allocator = allotment.Allocator(allotment.SimulatedDevice("1003MiB"))
    odd = 'a "quoted"\nname \\ {}'
    for name in [odd, *(f"tag {number}" for number in range(10_000))]:
        with allotment.tag(name):
            allocator.free(allocator.malloc(1000))
    registry = prometheus.CollectorRegistry()
    registry.register(metrics.Collector())
    text = prometheus.generate_latest(registry).decode()
    assert text.count("allotment_paused_bytes{") >= 10_001
    assert r'tag="a \"quoted\"\nname \\ {}"' in text


def test_the_endpoint_speaks_open_metrics_and_prometheus_own_form():
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    allocator = allotment.Allocator(allotment.SimulatedDevice("1004MiB"))
    address = allocator.malloc(3 * MIB)
    with metrics.serve(0) as server:
        place = f"http://127.0.0.1:{server.port}/metrics"
        kind, text = fetch(place, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        names = {family.name for family in text_string_to_metric_families(text)}
        assert names == {*metrics.GAUGES, *metrics.COUNTERS}
        kind, text = fetch(place)
        assert kind.startswith("text/plain") and "allotment_ooms_total{" in text
    with pytest.raises(URLError):
        fetch(place)
    allocator.free(address)


def test_without_the_package_it_says_what_to_install():
    program = "import sys; sys.modules['prometheus_client'] = None; import allotment.metrics"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'allotment[metrics]'" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched on Linux")
def test_one_endpoint_serves_all_processes_that_announce_themselves():
    with Peer(ALLOTMENT_MONITOR="1") as one, Peer(ALLOTMENT_MONITOR="1") as two:
        for peer in (one, two):
            peer.run("alloc = Allocator('host'); block = alloc.malloc(3 << 20)")
        exporter = subprocess.Popen(
            [sys.executable, "-m", "allotment.metrics", "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert exporter.stdout is not None
            _, text = fetch(exporter.stdout.readline().split(";")[0])
            for peer in (one, two):
                assert re.search(rf'allotment_allocated_bytes{{device="host",pid="{peer.pid}",.*}} 3.145728e\+06', text)
        finally:
            exporter.terminate()
            exporter.wait()


# --- the dashboard ---


def queries():
    board = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_queries_exported_metrics():
    reported = {*metrics.GAUGES, *(f"{name}_total" for name in metrics.COUNTERS)}
    asked = {name for query in queries() for name in re.findall(r"allotment_\w+", query)}
    assert asked <= reported
    assert asked >= {"allotment_reserved_bytes", "allotment_ooms_total", "allotment_paused_bytes"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus server is installed")
def test_a_real_server_scrapes_a_program_and_answers_every_query_of_the_dashboard(tmp_path):
    with Peer() as program:
        port = program.run(
            """
            import allotment.metrics, threading
            alloc = Allocator("sim:1GiB", limit="512MiB")
            block = alloc.tenant("trainer").malloc(3 << 20)
            with allotment.tag("weights"):
                tagged = alloc.malloc(30 << 20)
            try:
                alloc.malloc("1GiB")
            except MemoryError:
                pass
            result = allotment.metrics.serve(0).port
            """
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = free.getsockname()[1]
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n"
            f"  - job_name: allotment\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
        )
        server = subprocess.Popen(
            [
                "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            unanswered = queries()
            give_up = time.monotonic() + 60
            while unanswered:
                assert time.monotonic() < give_up, unanswered
                time.sleep(0.2)
                unanswered = [query for query in unanswered if not answer(own, query)]
            assert answer(own, 'sum(allotment_allocated_bytes{tenant="trainer"})') == [str(3 * MIB)]
            assert answer(own, "allotment_ooms_total") == ["1"]
        finally:
            server.terminate()
            server.wait()


def answer(port, query):
    """Return the values of a query; none while the server starts."""
    query = query.replace("$device", ".*").replace("$__rate_interval", "10s")
    try:
        _, text = fetch(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}")
    except URLError:
        return []
    found = json.loads(text)
    assert found["status"] == "success"
    return [each["value"][1] for each in found["data"]["result"]]
