"""Fixtures and rules for all tests."""

import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

pytest.register_assert_rewrite("contracts", "helpers")


def pytest_configure(config: pytest.Config) -> None:
    """The user's calibration prices no replay of the tests, and the tests leave nothing in the user's folders."""
    home = TemporaryDirectory(prefix="allotment-tests-")
    config.add_cleanup(home.cleanup)
    os.environ["XDG_CONFIG_HOME"] = home.name
    os.environ.pop("ALLOTMENT_COSTS", None)


LONGEST_FIRST = (
    "devices/cuda/test_on_fake_driver.py",
    "core/placement/test_dense.py",
    "core/test_faults.py",
    "lab/conformance/test_conformance.py",
    "core/placement/test_first_fit.py",
    "allocators/caching/test_hostile_use.py",
    "core/test_host_memory.py",
    "lab/replay/test_gate.py",
    "sharing/test_two_processes.py",
    "allocators/caching/test_sanitizer.py",
    "sharing/test_faults.py",
    "monitor/test_top.py",
    "preload/test_ledger.py",
    "lab/tune/test_tune.py",
    "stress/test_dense_combinations.py",
    "core/placement/test_short_path.py",
    "core/tools/test_forks.py",
    "core/test_state_machine.py",
    "lab/ranks/test_ranks.py",
)
"""Files that take more than four seconds of processor time. Processes share the tests by file, so these come first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests. Those of `allotment.testing` that start threads cannot say so with our marker: do it here."""
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if getattr(getattr(item, "function", None), "runs_threads", False):
            item.add_marker(pytest.mark.threads)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections: many tests run one, and would spend their time on these."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fail a test that leaves this thread with a lock: threads of later tests would wait for it."""
    module = sys.modules.get("allotment._core.tools.fork_safe_lock")
    if module is not None and any(lock._is_owned() for lock in module._living()):
        raise AssertionError(f"{item.nodeid} left a lock held")
    if sys.exc_info()[1] is not None:
        raise AssertionError(f"{item.nodeid} left the interpreter handling {sys.exc_info()[1]!r}")


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Return a compiled module of the tests by its name; see helpers/extension.py."""
    from helpers.extension import build

    folder = tmp_path_factory.mktemp("extensions")
    return cache(lambda name: build(name, folder))
