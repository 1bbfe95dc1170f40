"""The bytes of a handle are checked before anything is done with them."""

import pickle
import random
import struct

import pytest

from allotment import Allocator, SharedHandle, SharingError, open_shared
from allotment._sharing import wire
from helpers.peer import Peer

KNOWN_REASONS = {
    "truncated", "altered", "foreign", "future", "owner_gone", "expired", "other_user", "other_device", "other_boot",
}  # fmt: skip


@pytest.fixture
def handle():
    allocator = Allocator("sim:1GiB")
    buffer = allocator.empty(5000)
    handle = allocator.share(buffer)
    yield handle
    handle.close()


def reason_of(data):
    with pytest.raises(SharingError) as raised:
        open_shared(SharedHandle.from_bytes(data))
    return raised.value.reason


def test_a_handle_survives_bytes_and_pickle_and_is_then_equal_and_has_the_same_hash(handle):
    again = SharedHandle.from_bytes(handle.to_bytes())
    thawed = pickle.loads(pickle.dumps(handle))
    assert handle == again == thawed
    assert len({handle, again, thawed}) == 1
    assert thawed.to_bytes() == handle.to_bytes()
    assert thawed.size == 5000
    assert thawed.device == "sim:1GiB"


def test_a_handle_is_not_equal_to_another_blocks_or_to_its_bytes(handle):
    allocator = Allocator("sim:1GiB")
    with allocator.empty(1) as buffer:
        other = allocator.share(buffer)
        assert handle != other
        assert handle != handle.to_bytes()
        other.close()


def test_every_shorter_handle_is_truncated(handle):
    data = handle.to_bytes()
    assert {reason_of(data[:length]) for length in range(1, len(data))} == {"truncated"}


def test_bytes_of_others_are_foreign():
    for data in (b"", b"\x02c" + bytes(64), bytes(200), pickle.dumps({}), b"ALSX" + bytes(200)):
        assert reason_of(data) == "foreign"


def test_a_handle_of_a_later_version_is_of_the_future(handle):
    data = bytearray(handle.to_bytes())
    data[4] += 1
    assert reason_of(bytes(data)) == "future"
    assert reason_of(bytes(data[:5])) == "future"


def test_a_handle_with_bytes_behind_it_is_altered(handle):
    assert reason_of(handle.to_bytes() + b"x") == "altered"


def test_a_thousand_altered_handles_map_nothing_and_crash_nothing():
    allocator = Allocator("host", settings="shareable:True")
    draw = random.Random(17)
    with Peer() as peer:
        buffer = allocator.empty(100_000)
        handle = allocator.share(buffer)
        data = handle.to_bytes()
        peer.run("open_shared(handle).close(); wait_until(everything_is_closed)", handle=handle)
        hostile = [altered(data, draw) for _ in range(1000)]
        peer.begin(
            """
            before = mappings(), descriptors()
            result = []
            for data in hostile:
                try:
                    result.append(repr(open_shared(SharedHandle.from_bytes(data))))
                except SharingError as error:
                    result.append(error.reason)
            after = mappings(), descriptors()
            assert before == after, (before, after)
            """,
            hostile=hostile,
        )
        reasons = peer.finish()
    assert set(reasons) <= KNOWN_REASONS
    assert {"altered", "truncated", "foreign", "future"} <= set(reasons)
    handle.close()


def altered(data, draw):
    """Return the bytes with some bits changed, or truncated, or with other bytes in the middle."""
    changed = bytearray(data)
    match draw.randrange(4):
        case 0:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        case 1:
            del changed[draw.randrange(len(changed)) :]
        case 2:
            start = draw.randrange(len(changed))
            changed[start : start + 8] = struct.pack("<Q", draw.getrandbits(64))
        case 3:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed) if bytes(changed) != data else data[:-1]


def forged(handle, **changes):
    """Return a handle with a correct checksum and other contents."""
    from dataclasses import replace

    from allotment._sharing.handle import facts_of, make_handle

    return make_handle(replace(facts_of(handle), **changes))


def test_what_is_not_this_users_machines_or_processs_is_refused_by_name(handle):
    assert reason_of(forged(handle, user=12345).to_bytes()) == "other_user"
    assert reason_of(forged(handle, boot=bytes(16)).to_bytes()) == "other_boot"
    assert reason_of(forged(handle, token=bytes(16)).to_bytes()) == "owner_gone"
    assert reason_of(forged(handle, generation=999).to_bytes()) == "expired"
    assert reason_of(forged(handle, block=0x1000).to_bytes()) == "expired"
    assert reason_of(forged(handle, allocator=999).to_bytes()) == "expired"


def test_a_device_that_is_not_here_is_another_device():
    with Peer() as peer:
        handle = peer.run(
            """
            allocator = Allocator("sim:1GiB")
            buffer = allocator.empty(1)
            result = allocator.share(buffer)
            """
        )
        assert reason_of(forged(handle, family="other", name="acme:0").to_bytes()) == "other_device"
        assert reason_of(forged(handle, family="cuda", name="cuda:0").to_bytes()) == "other_device"
        from allotment import Stream

        stream = Stream(Allocator("sim:2GiB"))
        with pytest.raises(SharingError) as raised:
            open_shared(handle, stream=stream)
        assert raised.value.reason == "other_device"


NASTY = "acme\x1b[2J\x07\r\u202e\x9b0"


def test_a_forged_handle_brings_no_control_characters_to_the_terminal(handle):
    made = forged(handle, family="other", name=NASTY, token=bytes(16))
    for text in (repr(made), made.device, str(refusal_of(made))):
        assert text.isprintable()
        assert "acme\\x1b[2J\\x07\\r\\u202e\\x9b0" in text


def test_what_another_process_says_brings_no_control_characters_to_the_terminal():
    reply = wire.Reply.read(wire.Reply(wire.Answer.FAILED, text=NASTY).pack(), [])
    assert reply.text.isprintable()
    assert reply.text.startswith("acme\\x1b")


def refusal_of(handle):
    with pytest.raises(SharingError) as raised:
        open_shared(handle)
    return raised.value


def test_only_a_handle_opens_a_block(handle):
    with pytest.raises(TypeError, match="by its SharedHandle, not by bytes"):
        open_shared(handle.to_bytes())
