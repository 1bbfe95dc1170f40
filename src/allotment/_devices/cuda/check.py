"""Checks the CUDA driver of this machine: `python -m allotment._devices.cuda.check [INDEX]`

Calls every driver function that the package uses once, and prints the result of each. Run it first on a new machine,
driver or kind of GPU: one run shows everything that is wrong. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import subprocess
import sys

from allotment._core.contract.probe import Probe, StatusError
from allotment._devices.cuda.device import CudaDevice
from allotment._devices.cuda.driver import FUNCTIONS, driver_version
from allotment._devices.cuda.trial import try_every_function
from allotment.errors import DeviceError

IMPORT = "--import"
FUNCTION_OF = {"segment_import": "cuIpcOpenMemHandle_v2", "segment_close": "cuIpcCloseMemHandle"}
IMPORTED = b"seen from another process"
NOT_TRIED = "not tried"


class Results:
    """Prints one line per function as soon as its result is known.

    After a crash, the last line names the last good call.
    """

    def __init__(self) -> None:
        self.complaints: dict[str, str] = {}

    def report(self, function: str, complaint: str) -> None:
        self.complaints[function] = complaint
        print(f"{function:<36} {complaint or 'ok'}", flush=True)

    @property
    def wrong(self) -> list[str]:
        return [name for name, complaint in self.complaints.items() if complaint and complaint != NOT_TRIED]


def share_with_another_process(index: int, results: Results) -> None:
    """Call the import functions in a second process: a process cannot import its own memory."""
    device = CudaDevice(index)
    probe = Probe(device)
    address = probe.segment_allocate(1 << 21)
    device.copy_from_host(address, IMPORTED)
    handle = probe.segment_export(address)
    event = probe.shared_event_create()
    probe.event_record(event, 0)
    also = probe.event_export(event)
    child = subprocess.run(
        [sys.executable, "-m", __spec__.name, str(index), IMPORT, handle.hex(), also.hex()],
        capture_output=True,
        text=True,
    )
    probe.event_destroy(event)
    for line in child.stdout.splitlines():
        function, _, complaint = line.partition(" ")
        results.report(function, complaint)
    if child.returncode != 0:
        results.report("cuIpcOpenMemHandle_v2", f"the second process failed: {child.stderr.strip()[-200:]}")
    probe.segment_free(address, 1 << 21)


def import_memory(index: int, handle: bytes, event: bytes) -> int:
    device = CudaDevice(index)
    probe = Probe(device)
    try:
        address = probe.segment_import(handle)
        seen = device.copy_to_host(address, len(IMPORTED))
        print("cuIpcOpenMemHandle_v2", "" if seen == IMPORTED else f"the memory holds {seen!r}")
        probe.segment_close(address)
        print("cuIpcCloseMemHandle")
        imported = probe.event_import(event)
        probe.event_synchronize(imported)
        probe.event_destroy(imported)
        print("cuIpcOpenEventHandle")
    except StatusError as error:
        print(FUNCTION_OF.get(error.operation, "cuIpcOpenEventHandle"), error.text)
    return 0


def print_facts(index: int) -> None:
    device = CudaDevice(index)
    probe = Probe(device)
    free, total = probe.memory_info()
    version = driver_version()
    print(f"{device.name}: {device.model}, {device.uuid}, compute capability {device.compute_capability}")
    print(f"driver for CUDA {version // 1000}.{version % 1000 // 10}, {free:,} of {total:,} bytes free")
    print(f"capabilities {probe.capabilities!r}")
    print(f"processes {device.processes()}")


def main(arguments: list[str]) -> int:
    index = int(arguments[0]) if arguments else 0
    if IMPORT in arguments:
        handle, event = arguments[arguments.index(IMPORT) + 1 :][:2]
        return import_memory(index, bytes.fromhex(handle), bytes.fromhex(event))
    results = Results()
    try:
        print_facts(index)
        try_every_function(index, results.report)
        share_with_another_process(index, results)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 1
    for name in FUNCTIONS:
        if name not in results.complaints:
            results.report(name, NOT_TRIED)
    print(f"{len(FUNCTIONS)} functions, {len(results.wrong)} wrong: {', '.join(results.wrong) or 'none'}")
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
