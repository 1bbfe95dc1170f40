"""Runs the engine under a sanitizer: first planted bugs, which must all be found, then programs without bugs.

    python tests/sanitize/run.py address|thread BUILD

BUILD is a copy of the project, compiled with ALLOTMENT_SANITIZE and with planted.pyx in its src/, as `make sanitize`
and `make race` make it. Exits with 0 if every planted bug was reported and nothing else was.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Reports are written below Python: with pytest's usual capture they would be lost at the end of the process.
PYTEST = ["-m", "pytest", "--capture=sys", "-m", "not gpu and not slow"]
# Programs that lose memory and mean to: a child of fork has no worker thread and so loses the task that the worker
# had in hand; others end with everything open. And forks beside threads that allocate: the checker's own malloc
# leaves its locks taken in the child. And programs that measure their own memory: what is freed the checker keeps.
# And those that start Python with an environment of their own, in which the checker is not loaded. And two that end by
# a segmentation fault, to see what our handler does: the checker has its own. And one that limits its addresses, of
# which the checker needs many.
LEAVES_OUT = [
    "--deselect=tests/core/placement/test_dense_streams.py::test_a_process_whose_addresses_are_limited_says_so",
    "--deselect=tests/test_testing.py::test_somebody_elses_device_is_tested_by_it",
    "--deselect=tests/test_testing.py::test_a_device_that_takes_a_second_free_fails_it",
    "--deselect=tests/core/mechanism/test_forgetting.py",
    "--deselect=tests/core/test_host_memory.py",
    "--deselect=tests/allocators/caching/test_pausing.py"
    "::test_touching_paused_host_memory_ends_the_process_with_a_word_about_the_tag",
    "--deselect=tests/allocators/caching/test_pausing.py"
    "::test_a_fault_that_is_sent_to_a_program_with_a_paused_tag_ends_it",
    "--deselect=tests/devices/host/test_lifetimes.py::test_a_child_ends_normally_at_the_end_of_its_program",
    "--deselect=tests/allocators/host_cache/test_threads.py::test_a_program_may_end_with_everything_open",
    "--deselect=tests/allocators/test_current_stream.py"
    "::test_a_stream_that_was_never_left_is_current_on_no_later_device",
    "--deselect=tests/allocators/test_end_of_the_program.py",
    "--deselect=tests/sharing/test_sending.py::test_a_program_that_ends_with_memory_of_others_open_is_silent",
    "--deselect=tests/devices/host/test_lifetimes.py::test_forks_in_the_middle_of_work_leave_every_lock_in_order",
    "--deselect=tests/core/tools/test_forks.py::test_threads_that_allocate_and_fork_leave_every_child_whole",
    "--deselect=tests/sharing/test_two_processes.py::test_an_import_reserves_what_it_needs_and_no_more",
]
# Children of fork beside threads. The thread sanitizer does not let them start threads; the address sanitizer sometimes
# leaves its own locks locked in them.
WITHOUT_FORKS = [
    "--deselect=tests/sharing/test_sending.py::test_through_a_queue[fork]",
    *(
        "--deselect=tests/sharing/test_sending.py"
        f"::test_what_was_sent_is_counted_after_it_was_received_and_nothing_is_held[{settings}-fork]"
        for settings in ("", ",expandable_segments:True", ",placement:dense")
    ),
    "--deselect=tests/sharing/test_sending.py::test_a_child_that_was_forked_before_the_first_share_opens_blocks",
    "--deselect=tests/sharing/test_two_processes.py::test_a_child_of_fork_has_blocks_of_its_own_and_no_leases",
]
OF_FILES = {"test_documents.py", "test_stubs.py"}  # about the contents of the repository, not about running code
OWN_TESTS = sorted(f"tests/{path.name}" for path in HERE.parent.glob("test_*.py") if path.name not in OF_FILES)
ADDRESS_OPTIONS = [
    "detect_leaks=1",
    "malloc_context_size=2",  # the call of malloc and its caller, so that leaks.txt can name the owner of a leak
    "allocator_may_return_null=1",
    # The leak check reads what it remembers of every thread's own variables, and crashes where a thread has ended
    # meanwhile and its library has not. (google/sanitizers#1170)
    "intercept_tls_get_addr=0",
]
RECORDINGS = [
    f"tests/golden/{name}.s1.json.gz"
    for name in (
        "checkpoint.deferred",
        "devoom.expandable",
        "edges.default",
        "graphs.reuse",
        "handles.expandable",
        "history.contexts",
        "large.gcsplit",
        "pools2.lend",
    )
]
DENSE = "placement:dense,dense_grain:256,dense_views:3"  # small chunks, often joined, and views that are often removed
# So many rounds that the first thread still runs when the second one starts, on a busy machine too.
TWO_THREADS = """
import threading
threads = [threading.Thread(target=planted.counts_without_a_lock, args=(3 * 10**7,)) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def leak_options(suppressions: Path) -> str:
    return f"suppressions={suppressions}:print_suppressions=0"


@dataclass(frozen=True)
class Sanitizer:
    """The environment of a kind of build, the planted bugs that it must find, and the programs that it runs."""

    library: str  # loaded before the interpreter, which is not instrumented itself
    environment: dict[str, str]
    planted: dict[str, str]  # a program -> words of the report that it must cause
    runs: list[list[str]]  # arguments for Python, in BUILD


SANITIZERS = {
    "address": Sanitizer(
        library="libasan.so",
        environment={
            "ASAN_OPTIONS": ":".join(ADDRESS_OPTIONS),
            "LSAN_OPTIONS": leak_options(HERE / "leaks.txt"),
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            # The interpreter's own arenas would hide from the leak check what they point to.
            "PYTHONMALLOC": "malloc",
        },
        planted={
            "planted.writes_past_the_end(10)": "heap-buffer-overflow",
            "planted.reads_after_free(10)": "heap-use-after-free",
            "planted.loses_memory(10)": "detected memory leaks",
            "planted.overflows(2**31 - 1)": "signed integer overflow",
        },
        runs=[
            [
                *PYTEST,
                *LEAVES_OUT,
                *WITHOUT_FORKS,
                "tests/core",
                "tests/devices",
                "tests/allocators",
                "tests/sharing",
                *OWN_TESTS,
            ],
            ["-m", "allotment", "conformance", *RECORDINGS],
            ["tests/stress/threads.py", "--seconds", "10", "--pools"],
            ["tests/stress/threads.py", "--seconds", "10", "--pools", "--settings", DENSE],
            ["tests/stress/dense_host.py", "--seconds", "10", "--settings", DENSE],
            ["tests/stress/entry_points.py", "--seconds", "5"],
        ],
    ),
    "thread": Sanitizer(
        library="libtsan.so",
        environment={"TSAN_OPTIONS": f"suppressions={HERE / 'races.txt'}:history_size=4:second_deadlock_stack=1"},
        planted={TWO_THREADS: "data race"},
        runs=[
            ["tests/stress/threads.py", "--seconds", "20"],
            ["tests/stress/threads.py", "--seconds", "20", "--pools"],
            ["tests/stress/threads.py", "--seconds", "20", "--pools", "--settings", "expandable_segments:True"],
            ["tests/stress/threads.py", "--seconds", "20", "--pools", "--settings", DENSE],
            ["tests/stress/dense_host.py", "--seconds", "20", "--settings", DENSE],
            ["tests/stress/entry_points.py", "--seconds", "20"],
            [*PYTEST, *WITHOUT_FORKS, "tests/sharing"],
        ],
    ),
}


def preloaded(library: str) -> str:
    """Return the sanitizer, and the C++ library, whose exceptions it needs to intercept from the start."""
    found = []
    for name in (library, "libstdc++.so.6"):
        answer = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(os.path.realpath(answer.stdout.strip()))
    return " ".join(found)


def plain_compilers(build: Path) -> Path:
    """Return a folder for PATH with compilers that run without the sanitizer, because compilers leak."""
    folder = build / "compiler"
    folder.mkdir(exist_ok=True)
    own = {(sysconfig.get_config_var(name) or "cc").split()[0] for name in ("CC", "CXX", "LDSHARED", "LDCXXSHARED")}
    for name in sorted({"cc", "c++", "gcc", "g++"} | own):
        if found := shutil.which(name):
            (folder / name).write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {found} "$@"\n')
            (folder / name).chmod(0o755)
    return folder.resolve()


def longer(arguments: list[str], seconds: str | None) -> list[str]:
    """The same run, if it is one under stress for so many seconds."""
    if seconds is None or "--seconds" not in arguments:
        return arguments
    place = arguments.index("--seconds") + 1
    return [*arguments[:place], seconds, *arguments[place + 1 :]]


def finds_planted_bugs(sanitizer: Sanitizer, build: Path, environment: dict[str, str]) -> bool:
    all_found = is_clean(["-c", "import planted"], build, environment)
    for program, words in sanitizer.planted.items():
        done = subprocess.run(
            [sys.executable, "-c", f"import planted\n{program}"],
            cwd=build,
            env=environment,
            capture_output=True,
            text=True,
        )
        found = done.returncode != 0 and words in done.stderr
        all_found = all_found and found
        print(f"planted: {words}: {'found' if found else 'NOT FOUND'}", flush=True)
        if not found:
            print(done.stderr, file=sys.stderr)
    return all_found


def is_clean(arguments: list[str], build: Path, environment: dict[str, str]) -> bool:
    print("+ python", " ".join(arguments), flush=True)
    if arguments[0] == "-m":  # the stress programs free everything; tests and recordings end in the middle
        allowed = build.resolve() / "leaks.txt"
        allowed.write_text((HERE / "leaks.txt").read_text() + (HERE / "leaks_of_tests.txt").read_text())
        environment = environment | {"LSAN_OPTIONS": leak_options(allowed)}
        if "TSAN_OPTIONS" in environment:  # its order of locks has room for 64; a fork acquires those of all devices
            environment["TSAN_OPTIONS"] += ":detect_deadlocks=0"
    done = subprocess.run([sys.executable, *arguments], cwd=build, env=environment)
    if done.returncode != 0:
        print(f"ended with {done.returncode}", flush=True)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(SANITIZERS))
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", help="of each run under stress, instead of a few")
    options = parser.parse_args()
    sanitizer = SANITIZERS[options.kind]
    environment = {
        **os.environ,
        **sanitizer.environment,
        "LD_PRELOAD": preloaded(sanitizer.library),
        "PATH": f"{plain_compilers(options.build)}:{os.environ['PATH']}",
        "PYTHONPATH": "src",
    }
    if not finds_planted_bugs(sanitizer, options.build, environment):
        sys.exit("a planted bug was not reported: what this sanitizer says of the rest means nothing")
    runs = [longer(arguments, options.seconds) for arguments in sanitizer.runs]
    failed = [arguments for arguments in runs if not is_clean(arguments, options.build, environment)]
    print(f"{options.kind}: {len(runs) - len(failed)} of {len(runs)} runs clean")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
