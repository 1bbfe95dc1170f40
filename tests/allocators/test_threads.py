"""What objects guarantee when several threads use one of them at the same time: see docs/threads.md."""

import gc
import threading
from collections import Counter
from contextlib import suppress

import pytest

import allotment
from allotment import AddressError, Allocator, Buffer, OutOfMemoryError, PinnedAllocator, Stream, StreamError
from helpers.child import output_of

pytestmark = pytest.mark.threads

THREADS = 8
ROUNDS = 200


def at_once(function, *, rounds=1):
    """Call `function(number)` on eight threads at the same time; return what each call returned or raised."""
    start = threading.Barrier(THREADS)
    answers = []

    def run(number):
        for _ in range(rounds):
            start.wait()
            try:
                answers.append(function(number))
            except Exception as error:
                answers.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def kinds(answers):
    return Counter(type(answer) for answer in answers)


def test_of_eight_threads_that_free_one_buffer_one_does_and_seven_get_an_error():
    allocator = Allocator("sim:1GiB")
    for _ in range(ROUNDS):
        buffer = allocator.empty(1000)
        answers = at_once(lambda _, buffer=buffer: allocator.free(buffer))
        assert kinds(answers) == {type(None): 1, AddressError: THREADS - 1}
    assert allocator.stats()["allocation.all.freed"] == ROUNDS


def test_of_eight_threads_that_close_one_buffer_one_frees_its_block():
    allocator = Allocator("sim:1GiB")
    for _ in range(ROUNDS):
        buffer = allocator.empty(1000)
        assert kinds(at_once(lambda _, buffer=buffer: buffer.close())) == {type(None): THREADS}
    assert allocator.stats()["allocation.all.freed"] == ROUNDS


def test_a_buffer_is_not_closed_under_a_slice_that_another_thread_takes():
    allocator = Allocator("host")
    for _ in range(ROUNDS):
        buffer = allocator.empty(1000)

        def take_or_close(number, buffer=buffer):
            if number % 2:
                return buffer.close()
            piece = buffer[10:20]
            assert memoryview(piece).nbytes == 10
            return piece

        answers = at_once(take_or_close)
        slices = [answer for answer in answers if isinstance(answer, Buffer)]
        assert not (slices and buffer.closed)
        for piece in slices:
            piece.close()
        buffer.close()
    assert allocator.stats()["allocated_bytes.all.current"] == 0


def test_names_of_tags_and_tenants_have_one_number_whichever_thread_was_first():
    allocator = Allocator("sim:1GiB")

    def use(number):
        for turn in range(50):
            with allotment.tag(f"tag {turn}"):
                address = allocator.tenant(f"tenant {turn}").malloc(512)
            allocator.free(address)

    assert kinds(at_once(use)) == {type(None): THREADS}
    assert len(allocator.sleep.tags()) == 50


def test_eight_threads_record_stacks_that_read_as_their_own():
    allocator = Allocator("sim:1GiB")
    allocator.record_history("all")
    places = {}
    for number in range(THREADS):
        exec(f"def function_{number}(allocator, size): return allocator.malloc(size)", places)

    def use(number):
        return [places[f"function_{number}"](allocator, 512 * (number + 1)) for _ in range(50)]

    at_once(use)
    entries = [entry for entry in allocator.snapshot()["device_traces"][0] if entry["action"] == "alloc"]
    assert len(entries) == 50 * THREADS
    for entry in entries:
        assert entry["frames"][0]["name"] == f"function_{entry['size'] // 512 - 1}"


def test_annotations_of_eight_threads_are_all_kept():
    allocator = Allocator("sim:1GiB")
    allocator.record_history("all")
    at_once(lambda number: [allocator.history.record_annotation({"n": (number, i)}) for i in range(100)])
    assert len({note["n"] for note in allocator.snapshot()["external_annotations"]}) == 100 * THREADS


def test_a_history_file_that_threads_start_and_end_is_always_whole(tmp_path):
    allocator = Allocator("sim:1GiB")

    def use(number):
        for turn in range(5):
            with suppress(allotment.RequestError):
                allocator.record_history(file=tmp_path / f"{number}-{turn}.history")
            for _ in range(50):
                allocator.free(allocator.malloc(1000))
            allocator.record_history(None)

    assert kinds(at_once(use)) == {type(None): THREADS}
    assert allocator.history.is_enabled() is False
    allocator.close()


def test_trackers_callbacks_and_steps_come_and_go_while_others_run():
    allocator = Allocator("sim:64MiB")

    def use(number):
        def tracker(*_):
            pass

        def callback():
            return False

        for _ in range(30):
            allocator.history.attach_trace_tracker(tracker)
            allocator.limits.add_free_memory_callback(callback)
            remove = allocator.on_out_of_memory(lambda facts: False)
            with suppress(OutOfMemoryError):
                allocator.malloc(1 << 30)
            remove()
            allocator.limits.remove_free_memory_callback(callback)
            allocator.history.detach_trace_tracker(tracker)

    assert kinds(at_once(use)) == {type(None): THREADS}
    allocator.inspection.check_invariants()


def test_of_eight_threads_that_destroy_one_stream_one_does():
    allocator = Allocator("host")
    for _ in range(50):
        stream = Stream(allocator)
        answers = at_once(lambda _, stream=stream: stream.destroy())
        assert set(kinds(answers)) <= {type(None), StreamError} and kinds(answers)[type(None)] >= 1
        assert repr(stream).endswith("destroyed>")


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_pinned_memory_of_eight_threads_is_nobody_elses(mode):
    pinned = PinnedAllocator("host", mode=mode)
    owned = {}

    def use(number):
        mine = []
        for turn in range(200):
            address = pinned.malloc(512 << turn % 4)
            assert owned.setdefault(address, number) == number
            mine.append(address)
            if len(mine) > 5:
                freed = mine.pop(0)
                del owned[freed]
                pinned.free(freed)
        for freed in mine:
            del owned[freed]
            pinned.free(freed)

    assert kinds(at_once(use)) == {type(None): THREADS}
    pinned.inspection.check_invariants()


def test_an_allocator_being_deleted_is_not_found_by_other_threads():
    over = threading.Event()

    def look():
        while not over.is_set():
            for holder in allotment._allocators.current.all_holders():
                repr(holder)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    for _ in range(ROUNDS):
        Allocator("sim:1GiB").malloc(0)
        PinnedAllocator("host").malloc(0)
        allotment.AsyncAllocator("sim:1GiB").malloc(0)
    over.set()
    for looker in lookers:
        looker.join()


def test_a_fork_in_the_middle_of_eight_threads_gives_the_child_a_whole_allocator():
    program = """
        import os, threading
        import allotment
        host = allotment.Allocator("host")
        over = False

        def use():
            while not over:
                host.free(host.malloc(1000))
                host.empty(5000).close()

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                host.inspection.check_invariants()
                host.free(host.malloc(1 << 20))
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        over = True
        for thread in threads:
            thread.join()
        print("whole")
    """
    assert output_of(program) == "whole\n"


def test_a_program_may_end_while_eight_threads_are_at_work():
    program = """
        import threading
        import allotment
        host = allotment.Allocator("host", settings="expandable_segments:True")
        started = threading.Barrier(9)

        def use():
            started.wait()
            while True:
                host.free(host.malloc(1000))
                host.empty(5000).close()

        for _ in range(8):
            threading.Thread(target=use, daemon=True).start()
        started.wait()
        print("end")
    """
    for _ in range(3):
        assert output_of(program) == "end\n"


def test_what_one_thread_says_about_garbage_collections_holds_though_others_make_objects():
    allocator = Allocator("sim:1GiB")
    allocator.record_history()
    asked, over = [], threading.Event()

    def ask():
        while not over.is_set():
            asked.append(len(allocator.stats()) + len(allocator.snapshot()))

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(ROUNDS // 10):
            gc.disable()
            calls = len(asked)
            while len(asked) < calls + 2:  # the call that was running has ended
                pass
            assert not gc.isenabled()
            gc.enable()
    finally:
        gc.enable()
        over.set()
        asker.join()
