"""`allotment.testing` in other projects' tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from allotment.testing import requirements

ROOT = Path(__file__).parents[1]

THEIR_TESTS = """
import pytest
from allotment import Backend
from allotment.errors import AddressError
from allotment.testing import BackendContract

class Accelerator(Backend):
    def __init__(self):
        super().__init__()
        self.segments = {}

    def allocate(self, size, stream):
        if size > 1 << 30:
            raise MemoryError
        address = max((start + length for start, length in self.segments.items()), default=1 << 20)
        self.segments[address] = size
        return address

    def free(self, address, size):
        if self.segments.pop(address, None) != size:
            REFUSE

class TestAccelerator(BackendContract):
    @pytest.fixture
    def device(self):
        return Accelerator()
"""


def run_their_tests(folder, refuse):
    """A folder that knows nothing of our project, with a pytest that is strict about markers and warnings."""
    (folder / "test_accelerator.py").write_text(THEIR_TESTS.replace("REFUSE", refuse))
    strict = ["-p", "no:cacheprovider", "--strict-markers", "--strict-config", "-W", "error", "-c", "/dev/null"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *strict, "--rootdir", folder, folder],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )


def test_somebody_elses_device_is_tested_by_it(tmp_path):
    done = run_their_tests(tmp_path, 'raise AddressError("not a segment", address)')
    assert done.returncode == 0, done.stdout
    passed, skipped = (int(re.search(rf"(\d+) {word}", done.stdout)[1]) for word in ("passed", "skipped"))
    assert passed >= 8
    assert passed + skipped >= len(requirements())


def test_a_device_that_takes_a_second_free_fails_it(tmp_path):
    done = run_their_tests(tmp_path, "pass")
    assert done.returncode == 1
    assert re.findall(r"FAILED \S+::(\w+)", done.stdout) == ["test_a_segment_cannot_be_freed_twice"]


def test_without_pytest_it_says_what_to_install():
    program = "import sys; sys.modules['pytest'] = None; import allotment, allotment.testing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: allotment.testing needs pytest" in done.stderr
    assert "install it with: pip install pytest" in done.stderr


def test_the_page_for_makers_of_devices_lists_what_it_requires():
    page = (ROOT / "docs" / "writing-a-backend.md").read_text()
    listed = page.split("## What the suite requires\n")[1].split("\n## ")[0]
    assert re.findall(r"^- (.*)$", listed, re.MULTILINE) == requirements()


@pytest.mark.parametrize("words", ["AddressError", "second time"])
def test_the_page_for_device_authors_says_that_a_second_free_is_refused(words):
    from allotment import Backend

    assert words in (Backend.free.__doc__ or "")
