"""Random histories and settings from untrusted sources: whatever they contain, one of our errors is raised, soon and
cheaply.

    python tests/stress/hostile_input.py --histories 50000 --settings 100000

Each case is made from its number alone, so one that failed can be run again with --only. Cases run in a child process;
if that dies, the case is named and the rest goes on in another one. Prints one JSON object; exit 1 if anything failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import json
import pickle
import random
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import allotment
from allotment._formats.torch_snapshot import read_snapshot
from allotment._settings import KEYS, Settings, parse_leniently
from allotment.errors import AllotmentError
from allotment.lab.explain.report import explain, explain_end
from allotment.lab.replay.run import Recording, has_history

MOST_SECONDS = 10.0
MOST_WAITING = 600.0
MOST_BYTES = 1 << 30
MOST_FILE = 1 << 20

NUMBERS = [
    *(0, 1, 2, 7, 511, 512, 513, 1024, -1, -512),
    *(
        (1 << power) + delta
        for power in (20, 21, 24, 30, 31, 32, 40, 47, 52, 55, 57, 59, 60, 62, 63, 64)
        for delta in (-1, 0, 1)
    ),
    *(20 << 20, 10 << 20, 40 << 20, (20 << 20) + 1),
]
WORDS = [
    "True",
    "False",
    "native",
    "cudaMallocAsync",
    "torch",
    "inf",
    "nan",
    "1e400",
    "0.5",
    "1.0",
    "-0",
    "x",
    ">",
    "",
    " ",
]
ACTIONS = [
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom", "user_defined", "something"),
]
STATES = ["inactive", "active_allocated", "active_pending_free", "active_awaiting_free", "odd"]


# -- Settings --------------------------------------------------------------------------------------------------------


def settings_text(draw: random.Random) -> str:
    names = [name for key in KEYS.values() for name in key.names]
    parts = []
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        name = draw.choice([*names, draw.choice(names)[:-1], "", "["])
        parts.append(f"{name}{draw.choice((':', ':', ':', ':', ',', '=', ''))}{settings_value(draw)}")
    text = draw.choice((",", ",", ",", ":", ";", ", ")).join(parts)
    if draw.random() < 0.1:
        place = draw.randrange(len(text) + 1)
        text = text[:place] + draw.choice("[]:,>\0\n\u0663\u00a0-+") + text[place:]
    return text


def settings_value(draw: random.Random) -> str:
    kind = draw.randrange(6)
    if kind == 0:
        return str(draw.choice(NUMBERS))
    if kind == 1:
        return draw.choice(WORDS)
    if kind == 2:
        return str(1 << draw.randrange(66))
    if kind == 3:
        return f"{draw.random():.3f}"
    if kind == 4:
        pairs = [
            f"{draw.choice(('>', 1 << draw.randrange(20)))}:{1 << draw.randrange(65)}" for _ in range(draw.randrange(6))
        ]
        return f"[{','.join(pairs)}]"
    return str(draw.randrange(200))


def try_settings(number: int) -> None:
    """Read one text in both modes, and apply the settings that it names."""
    draw = random.Random(number)
    text = settings_text(draw)
    settings, _ = parse_leniently(text)
    if draw.random() < 0.3:
        settings, _ = parse_leniently(settings_text(draw), settings)
    try:
        settings = Settings.parse(text)
    except AllotmentError:
        if draw.random() < 0.5:
            return
    work_with(draw, settings)


def work_with(draw: random.Random, settings: Settings) -> None:
    try:
        allocator = allotment.Allocator("sim:1GiB", settings=settings)
    except AllotmentError:
        return
    live = []
    for _ in range(draw.randrange(8)):
        try:
            if live and draw.random() < 0.4:
                allocator.free(live.pop(draw.randrange(len(live))))
            elif draw.random() < 0.1:
                allocator.empty_cache()
            else:
                live.append(
                    allocator.malloc(draw.choice((1, 513, 1 << 20, (1 << 20) + 1, 11 << 20, 30 << 20, 1 << 40)))
                )
        except AllotmentError:
            pass
        allocator.inspection.check_invariants()
    free_all(allocator, live)


def free_all(allocator: allotment.Allocator, live: list[int]) -> None:
    """An allocator that is deleted while blocks of it are in use keeps their memory, and this process makes many."""
    allocator.device.finish()
    for address in live:
        allocator.free(address)
    allocator.device.finish()
    allocator.empty_cache()


# -- Histories -------------------------------------------------------------------------------------------------------


def honest_snapshot(draw: random.Random) -> dict[str, Any]:
    """Return what one of our allocators recorded of a random run."""
    settings = Settings(
        expandable_segments=draw.random() < 0.4,
        garbage_collection_threshold=draw.choice((0.0, 0.0, 0.5)),
        max_split_size=draw.choice((2**64 - 1, 2**64 - 1, 40 << 20)),
    )
    allocator = allotment.Allocator(f"sim:{draw.choice((64, 256, 1024))}MiB", settings=settings)
    early = draw.randrange(12) if draw.random() < 0.3 else 0
    streams = [allotment.Stream(allocator) for _ in range(2)]
    pools = [allocator.pool() for _ in range(draw.randrange(3))]
    live: list[int] = []
    for step in range(early + draw.randrange(60)):
        if step == early:
            allocator.record_history(max_entries=draw.choice((None, None, 20)), context=None)
        kind = draw.random()
        try:
            if kind < 0.5:
                size = draw.choice((draw.randrange(1, 4000), draw.randrange(1, 40 << 20), 512, 1 << 20))
                stream = draw.choice((0, streams[0], streams[1]))
                if pools and draw.random() < 0.4:
                    with draw.choice(pools):
                        live.append(allocator.malloc(size, stream))
                else:
                    live.append(allocator.malloc(size, stream))
            elif kind < 0.85 and live:
                address = live.pop(draw.randrange(len(live)))
                if draw.random() < 0.2:
                    allocator.record_stream(address, streams[1])
                    allocator.device.launch(streams[1].handle)
                allocator.free(address)
                if draw.random() < 0.5:
                    allocator.device.finish()
            elif kind < 0.95:
                allocator.empty_cache()
            else:
                allocator.snapshot()
        except AllotmentError:
            pass
    snapshot = allocator.snapshot()
    free_all(allocator, live)
    return snapshot


def repeated_history(draw: random.Random) -> dict[str, Any]:
    """Repeat a short sequence: small in a file and long in a replay."""
    pattern = [entry(draw) for _ in range(draw.randrange(1, 8))]
    if draw.random() < 0.5:
        size, place = draw.choice((2 << 20, 20 << 20)), 1 << 40
        pattern = [
            {"action": "segment_alloc", "addr": place, "size": size, "stream": 0},
            {"action": "alloc", "addr": place, "size": 512, "stream": 0},
            {"action": "free_requested", "addr": place, "size": 512, "stream": 0},
            {"action": "free_completed", "addr": place, "size": 512, "stream": 0},
            {"action": "segment_free", "addr": place, "size": size, "stream": 0},
        ]
    entries = []
    moves = draw.random() < 0.3
    for turn in range(draw.choice((3, 30, 300, 1000))):
        for item in pattern:
            shift = turn * (64 << 20) if moves and "addr" in item else 0
            entries.append({**item, "addr": item["addr"] + shift} if shift else item)
        if draw.random() < 0.02:
            entries.append(entry(draw))
    return {"segments": [segment(draw) for _ in range(draw.randrange(3))], "device_traces": [entries]}


def entry(draw: random.Random) -> dict[str, Any]:
    action = draw.choice(ACTIONS)
    drawn = {
        "action": action,
        "device_free" if action == "oom" else "addr": place(draw),
        "size": draw.choice((512, 2 << 20, 20 << 20, 1000, draw.choice(NUMBERS))),
        "stream": draw.choice((0, 0, 1, 5, draw.choice(NUMBERS))),
    }
    if draw.random() < 0.2:
        drawn["pool_id"] = (draw.choice((0, 1)), draw.choice((0, 1, draw.choice(NUMBERS))))
    return drawn


def place(draw: random.Random) -> int:
    return draw.choice(
        (
            1 << 40,
            (1 << 40) + draw.randrange(64) * 512,
            (1 << 40) + draw.randrange(64) * (2 << 20),
            draw.choice(NUMBERS),
        )
    )


def segment(draw: random.Random) -> dict[str, Any]:
    blocks = [
        {
            "address": place(draw),
            "size": draw.choice((512, 2 << 20, draw.choice(NUMBERS))),
            "requested_size": 100,
            "state": draw.choice(STATES),
        }
        for _ in range(draw.randrange(4))
    ]
    return {
        "device": draw.choice((0, 0, 0, 1)),
        "address": place(draw),
        "total_size": draw.choice((2 << 20, 20 << 20, draw.choice(NUMBERS))),
        "stream": draw.choice((0, draw.choice(NUMBERS))),
        "segment_type": draw.choice(("small", "large", "odd")),
        "segment_pool_id": (0, draw.randrange(3)),
        "is_expandable": draw.random() < 0.5,
        "blocks": blocks,
    }


def hurt(draw: random.Random, snapshot: dict[str, Any]) -> None:
    """Change something, as a fault or an attacker would."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        rows = draw.choice((snapshot["device_traces"][-1], snapshot["segments"]))
        kind = draw.randrange(8)
        if kind == 0 and rows:
            del rows[draw.randrange(len(rows))]
        elif kind == 1 and rows:
            rows.insert(draw.randrange(len(rows) + 1), dict(draw.choice(rows)))
        elif kind == 2:
            draw.shuffle(rows)
        elif kind == 3:
            del rows[: draw.randrange(len(rows) + 1)]
        elif kind == 4:
            snapshot["allocator_settings"] = {
                **snapshot.get("allocator_settings", {}),
                draw.choice(
                    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "expandable_segments", "roundup_power2_divisions")
                ): draw.choice(
                    (
                        settings_text(draw),
                        draw.choice(NUMBERS),
                        None,
                        {str(1 << i): 1 << draw.randrange(64) for i in range(16)},
                        True,
                    )
                ),
            }
        elif rows:
            row = draw.choice(rows)
            blocks = row.get("blocks")
            if isinstance(blocks, list) and blocks and draw.random() < 0.5:
                row = draw.choice(blocks)
            key = draw.choice(list(row))
            row[key] = draw.choice((draw.choice(NUMBERS), draw.choice(ACTIONS), draw.choice(STATES), row[key]))


def history_bytes(number: int) -> bytes:
    draw = random.Random(number)
    kind = draw.random()
    if kind < 0.5:
        snapshot = honest_snapshot(draw)
    elif kind < 0.75:
        snapshot = repeated_history(draw)
    else:
        snapshot = {
            "segments": [segment(draw) for _ in range(draw.randrange(5))],
            "device_traces": [[entry(draw) for _ in range(draw.randrange(40))]],
        }
    if kind > 0.15:
        hurt(draw, snapshot)
    data = pickle.dumps(snapshot, protocol=draw.choice((2, 4, 5)))
    if draw.random() < 0.05 and data:
        changed = bytearray(data)
        changed[draw.randrange(len(changed))] = draw.randrange(256)
        data = bytes(changed)
    return gzip.compress(data) if draw.random() < 0.3 else data


def try_history(number: int) -> None:
    """Read one file, replay it as recorded, under other settings, on a small device; explain it."""
    data = history_bytes(number)
    assert len(data) < MOST_FILE
    draw = random.Random(-number)
    try:
        snapshot = read_snapshot(data)
        if not has_history(snapshot):
            explain_end(snapshot)
        recording = Recording(snapshot)
        recording.replay()
        explained = explain(recording)
        assert explained.waste.total == explained.peak.reserved_bytes - explained.peak.live_bytes
        recording.replay(
            draw.choice(("expandable_segments:True", "max_split_size_mb:40", "roundup_power2_divisions:4"))
        )
        recording.replay(capacity=draw.choice((1, 2 << 20, 64 << 20, 1 << 40)))
        if draw.random() < 0.05:
            recording.fit()
    except AllotmentError as error:
        assert str(error).isprintable(), error


# -- Running them ----------------------------------------------------------------------------------------------------

KINDS = {"histories": try_history, "settings": try_settings}


def work(kind: str, first: int, end: int) -> None:
    """In the child: a line before each case, so that one which ends the process is known, and one for each that failed.

    Time is that of the processor: how busy the machine is says nothing about a file. One that waits is ended.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, end):
        print(f"at {number}", flush=True)
        faulthandler.dump_traceback_later(MOST_WAITING, exit=True)
        began = time.process_time()
        try:
            KINDS[kind](number)
        except BaseException:
            print("failed " + json.dumps([number, traceback.format_exc(limit=-4)]), flush=True)
        seconds = time.process_time() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        if seconds > MOST_SECONDS or grown * 1024 > MOST_BYTES:
            print("failed " + json.dumps([number, f"{seconds:.1f} s, {grown} KiB more"]), flush=True)
            peak += max(grown, 0)
    faulthandler.cancel_dump_traceback_later()


def run_kind(kind: str, numbers: range) -> Iterator[tuple[int, str]]:
    """Return the cases that failed, each with its error."""
    first = numbers.start
    while first < numbers.stop:
        child = subprocess.Popen(
            [sys.executable, __file__, "--work", kind, str(first), str(numbers.stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        at = first
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            word, _, rest = line.partition(" ")
            if word == "at":
                at = int(rest)
            elif word == "failed":
                number, what = json.loads(rest)
                yield number, what
        said = child.stderr.read()
        if child.wait() != 0:
            yield at, f"the process ended with {child.returncode}: {said[-500:]}"
        first = at + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=0)
    parser.add_argument("--settings", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"), help="run one case here")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work[0], int(given.work[1]), int(given.work[2]))
        return 0
    if given.only:
        KINDS[given.only[0]](int(given.only[1]))
        return 0
    began = time.monotonic()
    failed = {
        kind: dict(run_kind(kind, range(given.first, given.first + count)))
        for kind, count in (("histories", given.histories), ("settings", given.settings))
    }
    report = {
        "histories": given.histories,
        "settings": given.settings,
        "seconds": round(time.monotonic() - began, 1),
        "failed": failed,
    }
    print(json.dumps(report, indent=1))
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
