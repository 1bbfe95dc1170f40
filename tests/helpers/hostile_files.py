"""Files that attack their reader, each with a name. Run as a program, this reads them all and reports its own cost."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allotment._formats.torch_snapshot import read_snapshot
from allotment.errors import FormatError
from helpers.snapshot_forms import PICKLE_PROTOCOLS, small_snapshot

MIB = 1 << 20
PROTO = b"\x80\x04"

Files = Iterator[tuple[str, bytes]]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<BI", 0x58, len(data)) + data


def number(value: int) -> bytes:
    return struct.pack("<Bi", 0x4A, value)


def snapshot_with(extra: bytes) -> bytes:
    """Return a pickle of {"segments": [], "extra": ...}; the last part is passed as opcodes."""
    return PROTO + b"}(" + text("segments") + b"]" + text("extra") + extra + b"u."


# Pickles that would run code.


class Armed:
    """Yield pickles that call os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def armed_pickles(command: str) -> Files:
    """Yield pickles that run `command` when Python's own pickle module loads them."""
    for protocol in range(6):
        armed = Armed(command)
        yield f"armed, protocol {protocol}", pickle.dumps(armed, protocol)
        yield f"armed in a list, protocol {protocol}", pickle.dumps([armed], protocol)
        for place in ("segments", "device_traces", "allocator_settings", "external_annotations", "unknown"):
            yield f"armed {place}, protocol {protocol}", pickle.dumps({**small_snapshot(), place: armed}, protocol)
        for record in ("segment", "block", "entry", "frame", "pool"):
            snapshot = copy.deepcopy(small_snapshot())
            entry = snapshot["device_traces"][0][1]
            if record == "segment":
                snapshot["segments"][0]["address"] = armed
            elif record == "block":
                snapshot["segments"][0]["blocks"][0]["state"] = armed
            elif record == "entry":
                entry["size"] = armed
            elif record == "frame":
                entry["frames"][0]["name"] = armed
            else:
                entry["pool_id"] = (0, armed)
            yield f"armed {record}, protocol {protocol}", pickle.dumps(snapshot, protocol)

    line = command.encode()
    call = b"cposix\nsystem\n" if os.name == "posix" else b"cnt\nsystem\n"
    module = call[1:].split(b"\n")[0]
    argument = text(command)
    by_opcode = {
        "GLOBAL REDUCE": call + b"(" + argument + b"tR",
        "GLOBAL TUPLE1 REDUCE": call + argument + b"\x85R",
        "STACK_GLOBAL REDUCE": text(module.decode()) + text("system") + b"\x93" + argument + b"\x85R",
        "INST": b"(" + argument + b"i" + module + b"\nsystem\n",
        "INST, old string": b"(S'" + line.replace(b"'", b"\\'") + b"'\ni" + module + b"\nsystem\n",
        "OBJ": b"(" + call + argument + b"o",
        "POP hides it": call + argument + b"\x85R0N",
        "POP_MARK hides it": b"(" + call + argument + b"\x85R1N",
        "memo brings it back": call + b"q\x000h\x00" + argument + b"\x85R",
        "BUILD after REDUCE": call + argument + b"\x85R}b",
        "DUP": call + b"20" + argument + b"\x85R",
        "builtins": b"cbuiltins\n__import__\n" + text("os") + b"\x85R0" + call + argument + b"\x85R",
    }
    for name, opcodes in by_opcode.items():
        for protocol in (2, 3, 4, 5):
            yield f"{name}, header {protocol}", bytes([0x80, protocol]) + opcodes + b"."
        yield f"{name}, no header", opcodes + b"."
        yield f"{name}, in a snapshot", snapshot_with(opcodes)
        yield f"{name}, gzipped", gzip.compress(snapshot_with(opcodes))
        framed = snapshot_with(opcodes)[2:]
        yield f"{name}, in a frame", PROTO + b"\x95" + struct.pack("<Q", len(framed)) + framed


def object_makers() -> Files:
    """Yield opcodes that build objects, without any payload."""
    for name, opcodes in {
        "NEWOBJ": b"cbuiltins\nint\n)\x81",
        "NEWOBJ_EX": b"cbuiltins\nint\n)}\x92",
        "bare NEWOBJ": b"N)\x81",
        "bare NEWOBJ_EX": b"N)}\x92",
        "bare REDUCE": b"N)R",
        "bare BUILD": b"}}b",
        "bare OBJ": b"(No",
        "EXT1": b"\x82\x01",
        "EXT2": b"\x83\x01\x00",
        "EXT4": b"\x84\x01\x00\x00\x00",
        "PERSID": b"Pid\n",
        "BINPERSID": b"NQ",
        "bytes of protocol 2": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x06\x00\x00\x00latin1\x86R",
        "BYTEARRAY8": b"\x96" + bytes(8),
        "NEXT_BUFFER": b"\x97",
        "READONLY_BUFFER": b"N\x98",
        "EMPTY_SET": b"\x8f",
        "FROZENSET": b"(N\x91",
        "old LIST": b"(NNl",
        "old DICT": b"(NNd",
        "old INT": b"I1\n",
        "old FLOAT": b"F1\n",
        "old STRING": b"S'x'\n",
        "BINSTRING": b"T\x01\x00\x00\x00x",
        "old memo": b"Np0\ng0\n",
    }.items():
        yield name, PROTO + opcodes + b"."
        yield f"{name} in a snapshot", snapshot_with(opcodes)


# Pickles that lie about sizes, nest, or refer to themselves.


def lengths_that_lie() -> Files:
    for name, opcode, form in (
        ("BINUNICODE", 0x58, "<I"),
        ("BINUNICODE8", 0x8D, "<Q"),
        ("BINBYTES", 0x42, "<I"),
        ("BINBYTES8", 0x8E, "<Q"),
        ("LONG4", 0x8B, "<I"),
    ):
        largest = (1 << 8 * struct.calcsize(form)) - 1
        for length in (100, 1 << 20, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, largest // 2, largest):
            yield f"{name} of {length}", snapshot_with(bytes([opcode]) + struct.pack(form, length))
    for count in (9, 10, 100, 255):
        yield f"integer of {count} bytes", snapshot_with(bytes([0x8A, count]) + b"\x7f" * count)
        yield f"negative integer of {count} bytes", snapshot_with(bytes([0x8A, count]) + b"\x80" * count)
    for index in (1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
        yield f"memo number {index} given", snapshot_with(b"Nr" + struct.pack("<I", index))
        yield f"memo number {index} used", snapshot_with(b"j" + struct.pack("<I", index))
    yield "memo number 255 given", PROTO + b"Nq\xff."
    yield "memo number 7 used", snapshot_with(b"h\x07")


def deep_nesting() -> Files:
    for depth in (65, 1000, 100_000):
        yield f"{depth} lists by APPEND", snapshot_with(b"]" * depth + b"a" * (depth - 1))
        yield f"{depth} tuples", snapshot_with(b")" + b"\x85" * depth)
        yield f"{depth} dicts", snapshot_with((b"}" + text("k")) * depth + b"N" + b"s" * depth)
        yield f"{depth} open marks", snapshot_with(b"(" * depth)
        yield f"{depth} lists by APPENDS", snapshot_with(b"](" * depth + b"e" * depth)
        yield f"{depth} frames in frames", snapshot_with(b"\x95\xff\xff\xff\xff\xff\xff\xff\xff" * depth)
    tower = b"(" + text("segments") + b"]" * 500 + b"a" * 499 + b"u."
    yield "segments of lists of lists", PROTO + b"}" + tower


def memo_tricks() -> Files:
    def doubling(opening: bytes, closing: bytes, levels: int, leaf: bytes) -> bytes:
        out = leaf + b"\x94"
        for level in range(levels):
            out += opening + b"h" + bytes([level]) + b"h" + bytes([level]) + closing + b"\x94"
        return b"(" + out + b"t"

    for levels in (20, 30, 60, 200):
        yield f"lists doubled {levels} times", snapshot_with(doubling(b"](", b"e", levels, b"]"))
        yield f"tuples doubled {levels} times", snapshot_with(doubling(b"(", b"t", levels, b")"))
    laughs = doubling(b"(", b"t", 40, text("ha"))
    yield "key of doubled tuples", snapshot_with(b"}" + laughs + b"Ns")
    yield "list that contains itself", snapshot_with(b"]\x94h\x00a")
    yield "dict that contains itself", snapshot_with(b"}\x94" + text("k") + b"h\x00s")
    yield "tuple that contains itself by way of a list", snapshot_with(b"]\x94h\x00\x85a")
    yield "snapshot that is its own setting", PROTO + b"}\x94(" + text("segments") + b"]" + text("x") + b"h\x00u."
    yield "device_traces that contain themselves", PROTO + b"}(" + text("device_traces") + b"]\x94h\x00au."
    yield "segments that contain themselves", PROTO + b"}(" + text("segments") + b"]\x94h\x00au."
    frames = b"}(" + text("action") + text("alloc") + text("addr") + b"K\x01" + text("size") + b"K\x01"
    frames += text("frames") + b"]\x94h\x00au"
    yield "frames that contain themselves", PROTO + b"}(" + text("device_traces") + b"](](" + frames + b"eeu."
    yield "list as a key", snapshot_with(b"}]Ns")
    yield "dict as a key", snapshot_with(b"}}Ns")
    yield "list in a tuple as a key", snapshot_with(b"}]\x85Ns")

    entry = {"action": "alloc", "addr": 1, "size": 1}
    trace = [dict(entry) for _ in range(3000)]
    yield "one long trace for 1000 devices", pickle.dumps({"device_traces": [trace] * 1000})
    yield "more devices than there can be", pickle.dumps({"device_traces": [[] for _ in range(1025)]})
    segment = {"address": 1, "total_size": 1, "blocks": [{"address": 1, "size": 1, "state": "inactive"}] * 5000}
    yield "one long list of blocks in 5000 segments", pickle.dumps([segment] * 5000)
    wide = {**entry, **{f"unknown {i}": None for i in range(20_000)}}
    yield "one wide entry 20000 times", pickle.dumps({"device_traces": [[wide] * 20_000]})
    some = {**entry, **{f"unknown {i}": None for i in range(100)}}
    yield "one entry with 100 unknown fields 20000 times", pickle.dumps({"device_traces": [[some] * 20_000]})
    known = b"}(" + text("action") + text("alloc") + text("addr") + b"K\x01" + text("size") + b"\x94K\x01"
    rows = b"](" + known + b"h\x00K\x01" * 20_000 + b"u\x94" + b"h\x01" * 20_000 + b"e"
    yield (
        "one entry that gives its size 20000 times, 20000 times",
        PROTO + b"}" + text("device_traces") + b"]" + rows + b"as.",
    )
    yield "one entry 4000000 times", pickle.dumps({"device_traces": [[entry] * 4_000_000]})


def machine_misuse() -> Files:
    for code in range(256):
        if code != b"]"[0]:  # an empty list is a snapshot without segments
            yield f"byte {code:02x} alone", PROTO + bytes([code]) + b"."
        if code != b"."[0]:
            yield f"byte {code:02x} on an empty list", PROTO + b"]" + bytes([code])
    for name, opcodes in {
        "APPEND to nothing": b"Na",
        "APPEND to a tuple": b")Na",
        "APPEND to a dict": b"}Na",
        "APPEND below the mark": b"](Na",
        "APPENDS without a mark": b"]Ne",
        "APPENDS to nothing": b"(Ne",
        "APPENDS below the outer mark": b"]((Ne",
        "SETITEM on a list": b"]NNs",
        "SETITEM of one": b"}Ns",
        "SETITEMS of three": b"}(NNNu",
        "SETITEMS on nothing": b"(NNu",
        "TUPLE without a mark": b"Nt",
        "TUPLE2 of one": b"N\x86",
        "TUPLE3 below the mark": b"NN(N\x87",
        "MEMOIZE of nothing": b"\x94",
        "MEMOIZE below the mark": b"N(\x94",
        "two values": b"NN",
        "an open mark": b"N(",
        "nothing": b"",
        "second header": b"\x80\x04N",
    }.items():
        yield name, PROTO + opcodes + b"."
    yield "text after the end", pickle.dumps(small_snapshot()) + b"x"
    yield "a second pickle after the end", pickle.dumps(small_snapshot()) * 2
    yield "much after the end", pickle.dumps(small_snapshot()) + bytes(MIB)
    for version in (0, 1, 6, 255):
        yield f"protocol {version}", bytes([0x80, version]) + b"N."
    for data in (b"\xff", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"abc\xe2\x82"):
        yield f"text {data!r}", snapshot_with(struct.pack("<BI", 0x58, len(data)) + data)


def not_snapshots() -> Files:
    yield "empty", b""
    yield "text", b"hello\nworld\n"
    yield "zeros", bytes(1000)
    yield "zip", b"PK\x03\x04" + bytes(100)
    yield "html", b"<html>\n</html>"
    yield "json", json.dumps(small_snapshot()).encode()
    for value in (None, 1, 1.5, "segments", b"segments", (), {}, {"a": 1}, {1: 2}, True, ({"segments": []},)):
        yield f"pickle of {value!r}", pickle.dumps(value)


# Files that are truncated or changed.


def truncated() -> Files:
    for protocol in PICKLE_PROTOCOLS:
        data = pickle.dumps(small_snapshot(), protocol)
        for length in range(len(data)):
            yield f"protocol {protocol} cut at {length}", data[:length]
    packed = gzip.compress(pickle.dumps(small_snapshot()), mtime=0)
    for length in range(1, len(packed)):
        yield f"gzip cut at {length}", packed[:length]


ANYTHING = (
    None,
    True,
    1.5,
    -1,
    3,
    1 << 64,
    "text",
    b"bytes",
    [],
    [1],
    [[]],
    {},
    {"k": 1},
    (),
    (0, 1),
    (0, -1),
    (0, "x"),
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_pool(value: Any) -> bool:
    return value is None or value == (0, 1)


def _is_signed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value < 1 << 63


def _is_empty_list(value: Any) -> bool:
    return value == [] and isinstance(value, list)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


FIELDS = {
    "segment": {
        **dict.fromkeys(
            ["device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"], _is_number
        ),
        "segment_type": _is_text,
        "segment_pool_id": _is_pool,
        "is_expandable": _is_bool,
        "frames": _is_empty_list,
        "blocks": _is_empty_list,
    },
    "block": {
        **dict.fromkeys(["address", "size", "requested_size"], _is_number),
        "state": _is_text,
        "frames": _is_empty_list,
    },
    "entry": {
        **dict.fromkeys(["addr", "device_free", "size", "stream"], _is_number),
        "action": _is_text,
        "time_us": _is_signed,
        "compile_context": _is_text_or_none,
        "user_metadata": _is_text_or_none,
        "pool_id": _is_pool,
        "frames": _is_empty_list,
    },
    "frame": {"name": _is_text, "filename": _is_text, "line": _is_signed},
    "snapshot": {
        "segments": _is_empty_list,
        "device_traces": lambda value: isinstance(value, list) and value in ([], [[]]),
        "allocator_settings": lambda value: isinstance(value, dict),
        "external_annotations": _is_empty_list,
    },
}


def _record(snapshot: dict[str, Any], kind: str) -> dict[str, Any]:
    segment, entry = snapshot["segments"][0], snapshot["device_traces"][0][1]
    records = {"segment": segment, "block": segment["blocks"][0], "entry": entry, "frame": entry["frames"][1]}
    return records.get(kind, snapshot)


def wrong_types() -> Files:
    """Yield each field with each value that it must not have; fields with valid values are not yielded."""
    for kind, fields in FIELDS.items():
        for field, allowed in fields.items():
            for value in ANYTHING:
                if not allowed(value):
                    snapshot = copy.deepcopy(small_snapshot())
                    _record(snapshot, kind)[field] = value
                    yield f"{kind} with {field} = {value!r}", pickle.dumps(snapshot)
        for key in (None, 1, (1, 2), b"size"):
            snapshot = copy.deepcopy(small_snapshot())
            _record(snapshot, kind)[key] = 1
            yield f"{kind} with the key {key!r}", pickle.dumps(snapshot)
    for places in (("segments", 0), ("segments", 0, "blocks", 0), ("device_traces", 0), ("device_traces", 0, 0)):
        for value in (None, 1, "text", ["x"], (), [None]):
            snapshot = copy.deepcopy(small_snapshot())
            target: Any = snapshot
            for place in places[:-1]:
                target = target[place]
            target[places[-1]] = value
            yield f"{value!r} in {places}", pickle.dumps(snapshot)


def missing_fields() -> Files:
    for kind, fields in {
        "segment": ("address", "total_size"),
        "block": ("size", "state"),
        "entry": ("action", "addr", "size"),
    }.items():
        for field in fields:
            snapshot = copy.deepcopy(small_snapshot())
            del _record(snapshot, kind)[field]
            yield f"{kind} without {field}", pickle.dumps(snapshot)


# Files that unpack to more than the limits allow.


def bomb(opcodes: bytes, head: bytes = b"") -> bytes:
    """Return a gzip file of about a megabyte that unpacks to `opcodes`, for a gigabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    beginning = packer.compress(PROTO + head) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush the next piece does not refer back, so that one packed piece can be repeated.
    piece = packer.compress(opcodes * (MIB // len(opcodes))) + packer.flush(zlib.Z_FULL_FLUSH)
    return gzip.compress(b"")[:10] + beginning + piece * 1024


def gzip_bombs() -> Files:
    for name, opcodes in {
        "None": b"N",
        "lists": b"]",
        "dicts": b"}",
        "remembered lists": b"]\x94",
        "integers": b"K\x07",
        "long integers": b"\x8a\x08" + b"\x7f" * 8,
        "floats": b"G" + bytes(8),
        "tuples": b"N\x85",
        "pairs": b"NN\x86",
        "texts": text("abc"),
        "empty bytes": b"C\x00",
        "frames": b"\x95" + bytes(8),
        "lists of one": b"]Na",
        "dicts of one": b"}NNs",
    }.items():
        yield f"bomb of {name}", bomb(opcodes)
        yield f"bomb of {name}, not packed", PROTO + opcodes * (8 * MIB // len(opcodes)) + b"."
    yield "bomb in one list", bomb(b"(" + b"N" * 1000 + b"e", b"]")
    yield "bomb of one text", bomb(b"a", struct.pack("<BI", 0x58, 64 * MIB))
    yield "bomb of zeros", bomb(b"\0")
    entry = b"}(" + text("action") + text("alloc") + text("addr") + b"K\x01" + text("size") + b"K\x01u\x94"
    again = b"(" + b"h\x00" * 1000 + b"e"
    yield "bomb of one entry", bomb(again, entry + b"]")
    yield "bomb of one entry, not packed", PROTO + b"}" + text("device_traces") + b"](" + entry + b"e]" + again * 4000


def broken_gzip() -> Files:
    data = pickle.dumps(small_snapshot())
    packed = gzip.compress(data, mtime=0)
    yield "gzip with a wrong checksum", packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]
    yield "gzip with a wrong length", packed[:-1] + bytes([packed[-1] ^ 1])
    yield "gzip followed by text", packed + b"hello"
    yield "gzip followed by another", packed * 2
    yield "gzip of gzip", gzip.compress(packed)
    yield "gzip of nothing", gzip.compress(b"")
    yield "gzip of nothing, very often", gzip.compress(b"", mtime=0) * ((1 << 16) + 1)
    yield "gzip with an unknown method", packed[:2] + b"\x07" + packed[3:]
    yield "gzip with reserved flags", packed[:3] + b"\xe0" + packed[4:]
    yield "gzip with an endless name", packed[:3] + b"\x08" + packed[4:10] + b"n" * MIB
    yield "gzip of a stored block that lies", packed[:10] + b"\x01\xff\xff\x00\x00" + b"x" * 100
    yield "zlib instead of gzip", zlib.compress(data)


def flipped(count: int, seed: int) -> Files:
    """Return a small snapshot with one to four bytes changed; some of them are still snapshots."""
    chance = random.Random(seed)
    originals = [pickle.dumps(small_snapshot(), protocol) for protocol in PICKLE_PROTOCOLS]
    originals.append(gzip.compress(originals[-1], mtime=0))
    originals.append(gzip.compress(originals[-1], compresslevel=0, mtime=0))
    for i in range(count):
        data = bytearray(originals[i % len(originals)])
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        yield f"seed {seed}, change {i}", bytes(data)


def hostile_files(command: str) -> Files:
    """Every file that must end in an error."""
    for group in (
        armed_pickles(command),
        object_makers(),
        lengths_that_lie(),
        deep_nesting(),
        memo_tricks(),
        machine_misuse(),
        not_snapshots(),
        truncated(),
        wrong_types(),
        missing_fields(),
        gzip_bombs(),
        broken_gzip(),
    ):
        yield from group


def complaint_about(data: bytes) -> str | None:
    """Return the FormatError's message, None if the file was read; any other exception propagates."""
    try:
        read_snapshot(data)
    except FormatError as error:
        return str(error)
    return None


def peak_mib() -> float:
    """Return the peak memory of this program.

    Prefers another figure to that of `resource`, which starts with the memory of the parent process at our start.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB


def main(folder: str) -> None:
    """Read every file of a folder; report how many there were, which were accepted, and the peak memory."""
    before = worst = peak_mib()
    report: dict[str, Any] = {"files": 0, "accepted": [], "culprit": ""}
    for path in sorted(Path(folder).iterdir()):
        report["files"] += 1
        try:
            read_snapshot(path)
            report["accepted"].append(path.name)
        except FormatError:
            pass
        if peak_mib() > worst:
            worst, report["culprit"] = peak_mib(), path.name
    print(json.dumps({**report, "grown_mib": worst - before}))


if __name__ == "__main__":
    main(sys.argv[1])
