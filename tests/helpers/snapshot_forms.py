"""Snapshots in the forms that PyTorch writes, and the dict form that columns are compared with."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np

from allotment._core.edge.words import Action, BlockState, SegmentType
from allotment._formats.torch_snapshot import Snapshot

PICKLE_PROTOCOLS = (2, 3, 4, 5)


def small_snapshot() -> dict[str, Any]:
    """A snapshot with every known field, two devices, shared and unshared stacks."""
    main = {"name": "main", "filename": "train.py", "line": 7}
    forward = {"name": "forward", "filename": "model.py", "line": 300}
    stack = [forward, main]
    common = {"stream": 0, "compile_context": "N/A", "user_metadata": ""}
    return {
        "segments": [
            {
                "device": 0,
                "address": 0x7F0000000000,
                "total_size": 2097152,
                "allocated_size": 512,
                "active_size": 1024,
                "requested_size": 600,
                "stream": 0,
                "segment_type": "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": stack,
                "blocks": [
                    {
                        "address": 0x7F0000000000,
                        "size": 512,
                        "requested_size": 400,
                        "state": "active_allocated",
                        "frames": stack,
                    },
                    {
                        "address": 0x7F0000000200,
                        "size": 512,
                        "requested_size": 200,
                        "state": "active_pending_free",
                        "frames": [],
                    },
                    {
                        "address": 0x7F0000000400,
                        "size": 2096128,
                        "requested_size": 0,
                        "state": "inactive",
                        "frames": [],
                    },
                ],
            },
            {
                "device": 1,
                "address": 0xFFFF000000000000,
                "total_size": 20971520,
                "allocated_size": 0,
                "active_size": 0,
                "requested_size": 0,
                "stream": 418416880,
                "segment_type": "large",
                "segment_pool_id": (3, 1),
                "is_expandable": True,
                "frames": [],
                "blocks": [],
            },
        ],
        "device_traces": [
            [
                {
                    "action": "segment_alloc",
                    "addr": 0x7F0000000000,
                    "size": 2097152,
                    "time_us": 1794709362614601,
                    **common,
                },
                {
                    "action": "alloc",
                    "addr": 0x7F0000000000,
                    "size": 400,
                    "time_us": 1794709362614604,
                    **common,
                    "frames": stack,
                },
                {
                    "action": "alloc",
                    "addr": 0x7F0000000200,
                    "size": 200,
                    "time_us": 1794709362614605,
                    **common,
                    "frames": [dict(forward), main],
                },
                {
                    "action": "free_requested",
                    "addr": 0x7F0000000200,
                    "size": 200,
                    "time_us": 1794709362614607,
                    **common,
                    "frames": [main],
                },
                {
                    "action": "oom",
                    "device_free": 12345,
                    "size": 1 << 40,
                    "time_us": 1794709362614609,
                    **common,
                    "user_metadata": "step 1",
                },
            ],
            [],
        ],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.5,
            "expandable_segments": True,
            "roundup_power2_divisions": {"1": 0, "2": 4},
        },
        "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1794709362614600}],
    }


def assert_columns_equal(snapshot: Snapshot, expected: dict[str, Any]) -> None:
    """Compare every value of every column with the dict form, whatever fields that has."""
    stacks, contexts, metadata = snapshot.stacks, snapshot.compile_contexts, snapshot.user_metadata
    assert len(set(stacks)) == len(stacks)
    assert len(set(contexts)) == len(contexts)
    assert len(set(metadata)) == len(metadata)

    def check(column: np.ndarray, values: list[Any]) -> None:
        assert column.tolist() == values

    def check_stacks(column: np.ndarray, records: list[dict[str, Any]]) -> None:
        found = [[frame._asdict() for frame in stacks[i]] if i >= 0 else [] for i in column.tolist()]
        assert found == [record.get("frames", []) for record in records]

    def check_texts(column: np.ndarray, texts: tuple[str, ...], key: str, records: list[dict[str, Any]]) -> None:
        assert [texts[i] if i >= 0 else None for i in column.tolist()] == [record.get(key) for record in records]

    traces = expected.get("device_traces", [])
    assert [trace.device for trace in snapshot.traces] == list(range(len(traces)))
    for trace, entries in zip(snapshot.traces, traces, strict=True):
        check(trace.action, [Action[entry["action"].upper()] for entry in entries])
        check(trace.address, [entry["device_free"] if "device_free" in entry else entry["addr"] for entry in entries])
        check(trace.size, [entry["size"] for entry in entries])
        check(trace.stream, [entry.get("stream", 0) for entry in entries])
        check(trace.time_us, [entry.get("time_us", 0) for entry in entries])
        check(trace.pool_first, [entry.get("pool_id", (0, 0))[0] for entry in entries])
        check(trace.pool_second, [entry.get("pool_id", (0, 0))[1] for entry in entries])
        assert trace.has_pools == any("pool_id" in entry for entry in entries)
        check_stacks(trace.stack, entries)
        check_texts(trace.compile_context, contexts, "compile_context", entries)
        check_texts(trace.user_metadata, metadata, "user_metadata", entries)

    segments = expected.get("segments", [])
    for name in ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"):
        check(getattr(snapshot.segments, name), [segment.get(name, 0) for segment in segments])
    check(snapshot.segments.is_expandable, [segment.get("is_expandable", False) for segment in segments])
    check(snapshot.segments.type, [SegmentType[segment.get("segment_type", "unknown").upper()] for segment in segments])
    check(snapshot.segments.pool_first, [segment.get("segment_pool_id", (0, 0))[0] for segment in segments])
    check(snapshot.segments.pool_second, [segment.get("segment_pool_id", (0, 0))[1] for segment in segments])
    check_stacks(snapshot.segments.stack, segments)

    blocks = [block for segment in segments for block in segment.get("blocks", [])]
    check(snapshot.blocks.segment, [i for i, segment in enumerate(segments) for _ in segment.get("blocks", [])])
    first = snapshot.segments.first_block.tolist()
    assert [b - a for a, b in itertools.pairwise(first)] == [len(s.get("blocks", [])) for s in segments]
    for name in ("address", "size", "requested_size"):
        check(getattr(snapshot.blocks, name), [block[name] for block in blocks])
    check(snapshot.blocks.state, [BlockState[block["state"].upper()] for block in blocks])
    check_stacks(snapshot.blocks.stack, blocks)

    assert snapshot.allocator_settings == expected.get("allocator_settings", {})
    assert snapshot.external_annotations == expected.get("external_annotations", [])


def write_as_torch_cpp(value: Any) -> bytes:
    """Pickle the way PyTorch's own C++ writer does: protocol 2, long integers of 8 bytes, no batches."""
    out = bytearray(b"\x80\x02")
    memo: dict[Any, int] = {}

    def put(key: Any) -> None:
        number = memo[key] = len(memo)
        out.extend(struct.pack("<BB", 0x71, number) if number < 256 else struct.pack("<BI", 0x72, number))

    def push(value: Any) -> None:
        key = value if isinstance(value, str) else id(value)
        if isinstance(value, str | list | dict | tuple) and key in memo:
            out.extend(struct.pack("<BI", 0x6A, memo[key]))
        elif isinstance(value, bool):
            out.extend(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            out.extend(struct.pack("<Bi", 0x4A, value) if abs(value) < 1 << 31 else struct.pack("<BBq", 0x8A, 8, value))
        elif isinstance(value, float):
            out.extend(struct.pack(">Bd", 0x47, value))
        elif isinstance(value, str):
            out.extend(struct.pack("<BI", 0x58, len(value.encode())) + value.encode())
            put(key)
        elif isinstance(value, tuple):
            out.append(0x28)
            for item in value:
                push(item)
            out.append(0x74)
            put(key)
        elif isinstance(value, list):
            out.append(0x5D)
            put(key)
            out.append(0x28)
            for item in value:
                push(item)
            out.append(0x65)
        else:
            out.append(0x7D)
            put(key)
            out.append(0x28)
            for pair in value.items():
                for item in pair:
                    push(item)
            out.append(0x75)

    push(value)
    return bytes(out) + b"."
