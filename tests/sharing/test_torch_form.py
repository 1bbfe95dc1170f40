"""PyTorch's own bytes: written as PyTorch writes them, and opened, with pages sent as descriptors."""

import errno
import os
import struct

import pytest

from allotment import Allocator, DeviceError, SharingError, SizeError, UnsupportedError, open_shared_torch
from allotment._sharing import torch_form
from helpers.peer import Peer, descriptors, wait_until

MIB = 1 << 20
VERSIONS = {"2.11": 2, "2.12": 2, "2.13": 3, "2.15": 3}


def host(compat="2.13", settings=",expandable_segments:True"):
    return Allocator("host", settings=f"shareable:True,compat:{compat}{settings}")


@pytest.mark.parametrize("compat", VERSIONS)
def test_the_form_is_that_of_the_version(compat):
    allocator = host(compat)
    first = allocator.empty(30 * MIB)
    buffer = allocator.empty(30 * MIB)
    offset, handle = allocator.share_torch(buffer)
    version = VERSIONS[compat]
    assert (handle[0], handle[1:2], offset) == (version, b"e", 10 * MIB)
    pages = struct.unpack_from("<QQQ", handle, 2)
    assert pages == (os.getpid(), 20 * MIB, 2)
    assert len(handle) == (34 if version == 3 else 26) + 4 * 2
    assert handle == allocator.share_torch(buffer)[1]
    del first


@pytest.mark.parametrize("compat", ["2.11", "2.13"])
def test_pages_of_another_process_are_opened(compat):
    allocator = host(compat)
    first = allocator.empty(30 * MIB)
    buffer = allocator.empty(30 * MIB)
    memoryview(buffer)[:] = b"t" * (30 * MIB)
    offset, handle = allocator.share_torch(buffer)
    with Peer() as peer:
        seen = peer.run(
            """
            from allotment._devices.host.device import HostDevice
            device = HostDevice(shareable=True)
            before = descriptors()
            one = open_shared_torch(handle, offset, size, device=device)
            two = open_shared_torch(handle, offset, 100, device="host")
            result = one.address == two.address, set(bytes(memoryview(one)))
            memoryview(one)[:3] = b"yes"
            one.close(), two.close()
            from allotment._sharing.importer import _importer
            wait_until(lambda: not _importer.mappings.by_key)
            assert descriptors() == before
            """,
            handle=handle, offset=offset, size=len(buffer),
        )  # fmt: skip
    assert seen == (True, {ord("t")})
    assert bytes(memoryview(buffer)[:3]) == b"yes"
    del first


def test_anything_but_a_handle_is_refused_by_name():
    pages = struct.pack("<QQQ", 1, 2 * MIB, 1)
    cases = {
        b"": "truncated",
        b"\2": "truncated",
        b"\2c" + bytes(10): "truncated",
        b"\2c" + bytes(65): "altered",
        b"\2e" + pages[:-1]: "truncated",
        b"\2e" + pages: "truncated",
        b"\2e" + pages + bytes(5): "altered",
        b"\3e" + pages + struct.pack("<Q", 9) + bytes(4): "altered",
        b"\3e" + struct.pack("<QQQQ", 1, 0, 1, 1) + bytes(4): "altered",
        b"\3e" + struct.pack("<QQQQ", 1, 2 * MIB, 1 << 40, 1) + bytes(4): "altered",
        b"\3e" + struct.pack("<QQQQ", 0, 2 * MIB, 1, 1) + bytes(4): "altered",
        b"\3e" + struct.pack("<QQQQ", 1 << 31, 2 * MIB, 1, 1) + bytes(4): "altered",
        b"\4c" + bytes(64): "future",
        b"\2x" + bytes(64): "foreign",
        b"\0c" + bytes(64): "foreign",
    }
    for data, reason in cases.items():
        with pytest.raises(SharingError) as raised:
            open_shared_torch(data, 0, 1, device="host")
        assert raised.value.reason == reason, data


def test_a_handle_of_a_process_that_is_gone_or_has_freed_the_block():
    with Peer() as owner:
        offset, handle = owner.run(
            """
            allocator = Allocator("host", settings="shareable:True,expandable_segments:True")
            address = allocator.malloc(1 << 20)
            result = allocator.share_torch(address)
            """
        )
        open_shared_torch(handle, offset, 1 << 20, device="host").close()
        owner.run("allocator.free(address); allocator.empty_cache()")
        before = descriptors()
        with pytest.raises(SharingError) as raised:
            open_shared_torch(handle, offset, 1 << 20, device="host")
        assert raised.value.reason == "expired"
        owner.kill()
    with pytest.raises(SharingError) as raised:
        open_shared_torch(handle, offset, 1 << 20, device="host")
    assert raised.value.reason == "owner_gone"
    wait_until(lambda: descriptors() <= before)


REFUSALS = {
    errno.ESRCH: (SharingError, "is gone"),
    errno.ENOSYS: (UnsupportedError, "this system has no {call}.* Linux"),
    errno.EPERM: (UnsupportedError, "allow ptrace, or share with Allocator.share"),
    errno.EMFILE: (OSError, "Too many open files"),
    errno.ENFILE: (OSError, "Too many open files in system"),
    errno.EINVAL: (DeviceError, "{call}: Invalid argument"),
}


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["pidfd_open", "pidfd_getfd"])
def test_each_refusal_of_the_system_has_its_own_text(monkeypatch, call, number):
    def refuse(*given):
        raise OSError(number, os.strerror(number))

    pages = struct.pack("<QQQQ", os.getppid(), 2 * MIB, 1, 1) + bytes(4)
    place, name = (os, call) if call == "pidfd_open" else (torch_form, "_descriptor_of")
    monkeypatch.setattr(place, name, refuse)
    kind, text = REFUSALS[number]
    before = descriptors()
    with pytest.raises(kind, match=text.format(call=call)) as raised:
        open_shared_torch(b"\3e" + pages, 0, 1, device="host")
    assert type(raised.value) is kind
    assert getattr(raised.value, "reason", "owner_gone") == "owner_gone"
    assert descriptors() <= before


def test_a_python_without_the_call_says_so(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(UnsupportedError, match="this system has no pidfd_open"):
        open_shared_torch(b"\3e" + struct.pack("<QQQQ", 1, 2 * MIB, 1, 1) + bytes(4), 0, 1, device="host")


def test_a_place_outside_and_a_handle_of_ones_own_are_refused():
    allocator = host()
    buffer = allocator.empty(MIB)
    offset, handle = allocator.share_torch(buffer)
    with pytest.raises(SizeError):
        open_shared_torch(handle, offset, 64 * MIB, device="host")
    with pytest.raises(SizeError):
        open_shared_torch(handle, -1, 5, device="host")
    with pytest.raises(SharingError) as raised:
        open_shared_torch(handle, offset, MIB, device="host")
    assert raised.value.reason == "foreign"


def test_plain_host_memory_has_no_such_form_and_64_bytes_are_the_oldest():
    allocator = host(settings="")
    with pytest.raises(UnsupportedError, match="no form in PyTorch"):
        allocator.share_torch(allocator.empty(1))
    assert torch_form.read(bytes(64)).page == 0
