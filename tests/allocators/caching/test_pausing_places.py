"""Where the contents of paused memory are meanwhile: on the host, in a file, kept for the next pause, or nowhere."""

import ctypes
import errno
import gc
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import allotment
from allotment._allocators.caching import copying
from allotment._allocators.current import all_holders
from allotment.devices import HostDevice
from allotment.errors import FormatError, PausedError, PoolError, RequestError, SizeError
from helpers.child import output_of
from helpers.effort import some
from helpers.engine import MIB, reserved
from helpers.relay_device import RelayDevice

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="files without names are Linux's")
KIB = 1 << 10


@pytest.fixture
def many_spans():
    """So small that a few arrays keep several threads busy."""
    copying.choose(lanes=4, span=16 * KIB)
    yield
    copying.choose()


@pytest.fixture
def alloc():
    with allotment.Allocator("host") as made:
        yield made


def filled(alloc, tag="w", lengths=(100, 70_000, 300_000)):
    with allotment.tag(tag):
        return [alloc.full(length, number + 1, "int32") for number, length in enumerate(lengths)]


def are_right(arrays):
    return all((array == number + 1).all() for number, array in enumerate(arrays))


def filled_tags():
    """Return (allocator, tag) of all tags in this process that have memory; earlier tests may have left some."""
    gc.collect()
    return [
        (holder, tag)
        for holder in all_holders()
        if hasattr(holder, "sleep") and not holder.closed
        for tag, figures in holder.sleep.tags().items()
        if figures["reserved_bytes"] > 0
    ]


def bytes_to_keep(filled_tag):
    allocator, tag = filled_tag
    return allocator.sleep._bytes_to_keep(tag)


def files_of(folder):
    """Return the descriptors of this process that are open on files in a folder, including files without a name."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/"):
                found.append(int(name))
        except OSError:
            continue
    return found


# --- several threads --------------------------------------------------------------------------------------------------


@pytest.mark.threads
@pytest.mark.parametrize("options", [{}, {"keep_host": True}, {"keep": "file"}], ids=str)
def test_contents_that_several_threads_copied_are_right_and_progress_ends_at_the_total(alloc, many_spans, options):
    arrays = filled(alloc)
    seen = []
    for _ in range(5):
        seen.clear()
        alloc.pause("w", **options, progress=lambda *done: seen.append(done))
        alloc.resume("w", progress=lambda *done: seen.append(done))
        assert are_right(arrays)
        assert [done for done, total in seen if done == total] == [seen[-1][1]] * 2
        assert seen[-1][1] >= sum(array.nbytes for array in arrays)
    alloc.inspection.check_invariants()
    del arrays


@pytest.mark.threads
@pytest.mark.parametrize("during", ["pause", "resume"])
def test_a_progress_that_raises_while_threads_copy_leaves_the_tag_whole(alloc, many_spans, during):
    arrays = filled(alloc)

    def stop(done, total):
        raise KeyboardInterrupt

    if during == "pause":
        with pytest.raises(KeyboardInterrupt):
            alloc.pause("w", progress=stop)
        assert alloc.paused() == set()
        assert are_right(arrays)
        alloc.pause("w")
    else:
        alloc.pause("w")
        with pytest.raises(KeyboardInterrupt):
            alloc.resume("w", progress=stop)
    assert alloc.paused() == {"w"}
    alloc.inspection.check_invariants()
    alloc.resume("w")
    assert are_right(arrays)
    del arrays


@pytest.mark.threads
def test_two_tags_are_copied_at_the_same_time(alloc, many_spans):
    arrays = {tag: filled(alloc, tag) for tag in ("one", "two")}

    def repeat(tag):
        for _ in range(30):
            alloc.pause(tag)
            alloc.resume(tag)

    threads = [threading.Thread(target=repeat, args=(tag,)) for tag in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(are_right(each) for each in arrays.values())
    alloc.inspection.check_invariants()
    arrays.clear()


@pytest.mark.threads
@LINUX
def test_ctrl_c_during_a_long_copy_ends_it_and_the_tag_is_whole():
    program = """
        import os, signal, threading
        import allotment
        from allotment._allocators.caching import copying

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
        copying.choose(lanes=2, span=4096)
        alloc = allotment.Allocator("host")
        with allotment.tag("w"):
            array = alloc.full(40 << 20, 7, "uint8")
        for operation in (alloc.pause, alloc.resume):
            sent = []

            def send(done, total):
                if not sent:
                    sent.append(os.kill(os.getpid(), signal.SIGINT))

            try:
                operation("w", progress=send)
            except KeyboardInterrupt:
                print("interrupted", sorted(alloc.paused()))
            alloc.inspection.check_invariants()
            operation("w")
        print((array == 7).all(), threading.active_count())
    """
    assert output_of(textwrap.dedent(program)) == "interrupted []\ninterrupted ['w']\nTrue 1\n"


@pytest.mark.threads
@LINUX
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError", "RuntimeError"])
@pytest.mark.parametrize("started", [0, 1])
def test_a_thread_that_cannot_be_started_is_waited_for_by_nobody_and_those_that_run_are(error, started):
    program = f"""
        import _thread, threading
        import allotment
        from allotment._allocators.caching import copying

        copying.choose(lanes=2, span=4096)
        alloc = allotment.Allocator("host")
        with allotment.tag("w"):
            array = alloc.full(16 << 20, 7, "uint8")
        start, may_run, counts = _thread.start_new_thread, threading.Event(), []

        def begin(work, arguments):
            counts.append(None)
            if len(counts) > {started}:
                may_run.set()
                raise {error}("refused")
            return start(lambda: may_run.wait() and work(), arguments)

        for operation in (alloc.pause, alloc.resume):
            counts.clear(), may_run.clear()
            _thread.start_new_thread = begin
            try:
                operation("w")
            except {error} as caught:
                print(caught, sorted(alloc.paused()))
            _thread.start_new_thread = start
            alloc.inspection.check_invariants()
            operation("w")
        print((array == 7).all())
    """
    whole = "" if error == "RuntimeError" else "refused []\nrefused ['w']\n"
    assert output_of(textwrap.dedent(program)) == whole + "True\n"


class WithWords(RelayDevice):
    """Records which memory sleeps, as the host does, and then calls `reported(method)`."""

    def __init__(self):
        super().__init__(HostDevice())
        self.reported = lambda method: None

    def copy(self, destination, source, size, destination_device, source_device, stream):
        ctypes.memmove(destination, source, size)

    def _note_asleep(self, ranges, words):
        self.reported("note")

    def _forget_asleep(self, ranges):
        self.reported("forget")


@pytest.mark.parametrize("during", ["a resume", "a pause that fails"])
def test_nobody_else_can_pause_before_a_tag_is_noted_as_awake(during):
    with allotment.Allocator(WithWords()) as alloc:
        with allotment.tag("w"):
            pool = alloc.pool()
            blocks = [alloc.malloc(100 * KIB)]
            with pool:
                blocks.append(alloc.malloc(100 * KIB))
        seen = []

        def reported(method):
            seen.append(method)
            if method == "forget":
                with pytest.raises(PausedError, match="being paused or resumed"):
                    alloc.pause("w")
            elif seen == ["note", "note"] and during != "a resume":
                raise RuntimeError("refused")

        alloc.device.reported = reported
        if during == "a resume":
            alloc.pause("w", keep_host=True)
            alloc.resume("w")
        else:
            with pytest.raises(RuntimeError, match="refused"):
                alloc.pause("w", keep_host=True)
        assert seen.count("forget") == 2
        assert alloc.paused() == set()
        alloc.inspection.check_invariants()
        alloc.device.reported = lambda method: None
        for block in blocks:
            alloc.free(block)
        pool.close()


# --- the host ---------------------------------------------------------------------------------------------------------


def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@LINUX
def test_the_host_holds_what_sleeps_and_nothing_after(alloc):
    arrays = filled(alloc, lengths=(16 << 20, 4 << 20))
    size = sum(array.nbytes for array in arrays)
    alloc.pause("w")
    alloc.resume("w")  # with the buffers, which stay
    awake = resident()
    alloc.pause("w")
    assert resident() - awake <= 0.01 * size + 8 * MIB, "the device is the host: as much went as came"
    alloc.resume("w")
    assert resident() - awake <= 0.01 * size + 8 * MIB
    alloc.pause("w", keep_host=True)
    alloc.resume("w")
    assert resident() - awake >= 0.99 * size
    assert alloc.sleep.release_host_copy("w") == pytest.approx(size, rel=0.01)
    assert resident() - awake <= 0.01 * size + 8 * MIB
    assert are_right(arrays)
    del arrays


def test_pages_that_are_kept_are_those_of_the_next_pause(alloc):
    arrays = filled(alloc)
    places = []
    for _ in range(3):
        alloc.pause("w", keep_host=True)
        view = alloc.sleep.contents_of(arrays[2].ctypes.data, arrays[2].nbytes)
        assert set(view.cast("i")) == {3}
        places.append(memoryview_address(view))
        alloc.resume("w")
        assert set(alloc.sleep.contents_of(arrays[2].ctypes.data, 400).cast("i")) == {3}, "as at the last pause"
    assert len(set(places)) == 1
    alloc.pause("w")
    alloc.resume("w")
    assert alloc.sleep.contents_of(arrays[2].ctypes.data, 400) is None
    assert alloc.sleep.release_host_copy("w") == 0
    assert are_right(arrays)
    del arrays


def memoryview_address(view):
    return np.frombuffer(view, "uint8").ctypes.data


def test_kept_pages_that_are_too_few_or_too_many_are_replaced(alloc):
    arrays = filled(alloc)
    alloc.pause("w", keep_host=True)
    alloc.resume("w")
    with allotment.tag("w"):
        arrays.append(alloc.full(5_000_000, 4, "int32"))
    for _ in range(2):
        alloc.pause("w", keep_host=True)
        alloc.resume("w")
        assert are_right(arrays)
    arrays.pop()
    alloc.pause("w", keep_host=True)
    alloc.resume("w")
    assert are_right(arrays)
    del arrays


def test_kept_pages_go_with_their_tag_and_with_the_allocator(alloc):
    arrays = filled(alloc)
    address = arrays[0].ctypes.data
    alloc.pause("w", keep_host=True)
    alloc.resume("w")
    alloc.pause("w", keep="nothing")
    assert alloc.sleep.contents_of(address, 4) is None
    alloc.resume("w")
    alloc.pause("w", keep_host=True)
    alloc.resume("w")
    arrays.clear()
    alloc.close()
    assert alloc.sleep.contents_of(address, 4) is None


def test_kept_pages_are_released_with_the_last_memory_of_their_tag(alloc):
    for clear in (alloc.empty_cache, lambda: alloc.trim_to(0)):
        arrays = filled(alloc)
        alloc.pause("w", keep_host=True)
        alloc.resume("w")
        kept = arrays.pop()
        del arrays
        clear()
        assert alloc.sleep.contents_of(kept.ctypes.data, kept.nbytes) is not None, "some is left"
        del kept
        clear()
        assert alloc.sleep.release_host_copy("w") == 0


def test_kept_pages_of_pools_that_are_gone_return(alloc):
    stream = allotment.Stream(alloc)
    arrays = filled(alloc)
    for clear in (alloc.empty_cache, lambda: alloc.trim_to(0), alloc.paused, lambda: alloc.pause("w", keep_host=True)):
        with allotment.tag("w"), allotment.capture(stream) as graph:
            address = alloc.malloc(3 << 20, stream)
        alloc.free(address)
        alloc.pause("w", keep_host=True)
        alloc.resume("w")
        assert alloc.sleep.contents_of(address, 100) is not None
        graph.reset()
        alloc.empty_cache()
        clear()
        assert alloc.sleep.contents_of(address, 100) is None
    alloc.resume("w")
    assert are_right(arrays)
    del arrays


@LINUX
@pytest.mark.slow
def test_a_thousand_cycles_keep_the_contents_and_leave_nothing_behind(alloc, tmp_path):
    arrays = filled(alloc)
    places = [{}, {"keep_host": True}, {"keep": "file", "folder": tmp_path}]
    figures = []
    for number in range(max(some(1000), 60)):
        arrays[1][number] = arrays[2][number] = -number
        alloc.pause("w", **places[number % 3])
        assert reserved(alloc) == 0
        alloc.free(alloc.malloc(4 * MIB))
        alloc.empty_cache()
        alloc.resume("w")
        assert all((array[: number + 1] == -np.arange(number + 1)).all() for array in arrays[1:])
        assert are_right([arrays[0], *(array[number + 1 :] for array in arrays[1:])])
        if number % 30 == 29:
            figures.append((resident(), len(os.listdir("/proc/self/fd")), threading.active_count(), reserved(alloc)))
    alloc.inspection.check_invariants()
    assert figures[-1][0] - figures[1][0] <= MIB
    assert figures[-1][1:] == figures[1][1:]
    del arrays


@LINUX
def test_a_view_of_contents_can_be_read_after_they_have_gone_back():
    program = """
        import allotment

        alloc = allotment.Allocator("host")
        with allotment.tag("w"):
            arrays = [alloc.full(length, 7, "uint8") for length in (10_000, 100 << 20)]
        alloc.pause("w")
        views = [alloc.sleep.contents_of(array.ctypes.data, array.nbytes) for array in arrays]
        alloc.resume("w")
        print([len(bytes(view)) for view in views])
        print(all((array == 7).all() for array in arrays))
    """
    assert output_of(textwrap.dedent(program)) == f"[10000, {100 << 20}]\nTrue\n"


def test_contents_of_memory_that_is_not_asleep_are_not_there(alloc):
    arrays = filled(alloc)
    assert alloc.sleep.contents_of(arrays[0].ctypes.data, 4) is None
    alloc.pause("w")
    assert alloc.sleep.contents_of(0, 4) is None
    view = alloc.sleep.contents_of(arrays[0].ctypes.data + 4, 8)
    assert view.readonly
    assert list(view.cast("i")) == [1, 1]
    del view
    assert alloc.sleep.contents_of(arrays[0].ctypes.data, 1 << 40) is None
    alloc.resume("w")
    del arrays


class FewAddresses(WithWords):
    """Reserves addresses that it has released before."""

    def __init__(self):
        super().__init__()
        self.released = []

    def range_reserve(self, size, stream):
        return next((base for base, length in self.released if length == size), 0) or super().range_reserve(
            size, stream
        )

    def range_release(self, address, size):
        self.released.append((address, size))


def test_contents_that_are_kept_for_one_tag_are_not_those_of_another_at_the_same_addresses():
    with allotment.Allocator(FewAddresses()) as alloc:
        with allotment.tag("first"):
            held, block = alloc.malloc(700), alloc.malloc(5 * MIB)
        alloc.pause("first", keep_host=True)
        alloc.resume("first")
        alloc.free(block)
        alloc.empty_cache()
        with allotment.tag("second"):
            assert alloc.malloc(5 * MIB) == block
        assert alloc.sleep.contents_of(held, 700) is not None
        assert alloc.sleep.contents_of(block, 5 * MIB) is None
        alloc.free(held)
        alloc.free(block)


@LINUX
@pytest.mark.parametrize("options", [{}, {"keep": "file"}], ids=str)
def test_contents_that_nobody_wants_any_more_go_when_the_allocator_is_closed(alloc, tmp_path, options):
    if options:
        options = {**options, "folder": tmp_path}
    size = 64 * MIB
    arrays = filled(alloc, lengths=(size // 4,))
    alloc.pause("w", **options)
    before = resident()
    arrays.clear()
    alloc.close()
    assert files_of(tmp_path) == []
    assert options or before - resident() >= 0.9 * size


@pytest.mark.parametrize("how", ["one", "all"])
def test_a_limit_on_host_memory_that_is_too_small_says_what_is_needed_before_anything_is_paused(alloc, how):
    arrays = filled(alloc) + filled(alloc, "second")
    before = reserved(alloc)
    needed = alloc.sleep._bytes_to_keep("w") if how == "one" else sum(map(bytes_to_keep, filled_tags()))

    def pause(limit, **options):
        if how == "one":
            return alloc.pause("w", host_limit=limit, **options)
        return allotment.sleep(host_limit=limit, **options)

    with pytest.raises(RequestError, match=f"need {needed} bytes of the host, and host_limit allows {needed - 1}"):
        pause(needed - 1)
    assert alloc.paused() == set()
    assert reserved(alloc) == before
    with pytest.raises((RequestError, SizeError)):
        pause("much")
    pause(needed)
    allotment.wake()
    pause(0, keep="nothing")
    allotment.wake()
    del arrays


class Slow(WithWords):
    """Runs another operation while a pause waits for it."""

    meanwhile = None

    def device_synchronize(self):
        if self.meanwhile is not None:
            thread = threading.Thread(target=self.meanwhile)
            self.meanwhile = None
            thread.start()
            thread.join()


@pytest.mark.threads
def test_a_limit_on_host_memory_holds_for_what_is_allocated_until_the_tag_is_closed_for_requests():
    with allotment.Allocator(Slow()) as alloc:
        blocks = []

        def allocate():
            with pool:
                blocks.append(alloc.malloc(100 * KIB))

        with allotment.tag("w"):
            pool = alloc.pool()
            blocks.append(alloc.malloc(100 * KIB))
        allocate()
        limit = alloc.sleep._bytes_to_keep("w")
        alloc.device.meanwhile = allocate
        with pytest.raises(RequestError, match=f"need {limit + 100 * KIB} bytes of the host"):
            alloc.pause("w", host_limit=limit)
        assert len(blocks) == 3
        assert alloc.paused() == set()
        alloc.pause("w", host_limit=limit + 100 * KIB)
        alloc.resume("w")
        for block in blocks:
            alloc.free(block)
        pool.close()


@pytest.mark.parametrize("keep", ["host", "file", "nothing"])
def test_what_sleeps_already_is_not_paused_in_another_way(alloc, keep):
    arrays = filled(alloc)
    alloc.pause("w", keep=keep)
    for other in {"host", "file", "nothing"} - {keep}:
        with pytest.raises(PausedError, match=f"tag 'w' is paused already, with keep='{keep}'.*keep='{other}'"):
            alloc.pause("w", keep=other)
        assert alloc.paused() == {"w"}
    assert alloc.pause("w", keep=keep) == 0
    alloc.resume("w")
    assert keep == "nothing" or are_right(arrays)
    alloc.inspection.check_invariants()
    del arrays


# --- files ------------------------------------------------------------------------------------------------------------


@LINUX
def test_a_file_has_no_name_and_is_gone_after_the_resume(alloc, tmp_path):
    arrays = filled(alloc)
    released = alloc.pause("w", keep="file", folder=tmp_path)
    assert released > 0
    assert reserved(alloc) == 0
    assert os.listdir(tmp_path) == []
    (file,) = files_of(tmp_path)
    assert os.stat(file).st_size >= sum(array.nbytes for array in arrays)
    alloc.resume("w")
    assert are_right(arrays)
    assert files_of(tmp_path) == []
    alloc.inspection.check_invariants()
    del arrays


@LINUX
@pytest.mark.parametrize("refused", ["O_DIRECT", "O_TMPFILE", "both"])
def test_a_file_system_without_direct_files_or_nameless_ones_will_do(alloc, tmp_path, monkeypatch, refused):
    flags = {"O_DIRECT": os.O_DIRECT, "O_TMPFILE": os.O_TMPFILE & ~os.O_DIRECTORY}
    unwanted = sum(flags.values()) if refused == "both" else flags[refused]
    real = os.open

    def refuse(path, wanted, *rest, **more):
        if wanted & unwanted:
            if wanted & os.O_CREAT:
                os.close(real(path, wanted & ~unwanted, *rest, **more))  # as some file systems do
            raise OSError(errno.EINVAL, "refused")
        return real(path, wanted, *rest, **more)

    arrays = filled(alloc)
    monkeypatch.setattr(os, "open", refuse)
    alloc.pause("w", keep="file", folder=tmp_path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []
    assert len(files_of(tmp_path)) == 1
    alloc.resume("w")
    assert are_right(arrays)
    del arrays


@LINUX
def test_a_folder_that_lets_nobody_remove_files_is_refused_and_no_file_stays_open(alloc, tmp_path, monkeypatch):
    arrays = filled(alloc)
    real = os.open

    def refuse(path, wanted, *rest, **more):
        if wanted & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "refused")
        return real(path, wanted, *rest, **more)

    def keep_file(path, **more):
        raise OSError(errno.EPERM, "refused")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "unlink", keep_file)
        refused_folder(alloc, tmp_path, "cannot hold a file")
    assert files_of(tmp_path) == []
    assert are_right(arrays)
    del arrays


@LINUX
@pytest.mark.parametrize("change", ["a byte", "shorter"])
def test_a_file_that_was_changed_is_refused_and_the_tag_sleeps_on(alloc, tmp_path, change):
    arrays = filled(alloc)
    alloc.pause("w", keep="file", folder=tmp_path)
    (file,) = files_of(tmp_path)
    with open(f"/proc/self/fd/{file}", "r+b", buffering=0) as other:
        if change == "shorter":
            size = os.fstat(file).st_size
            other.truncate(size // 2 // 4096 * 4096)
        else:
            other.seek(12_345)
            (was,) = other.read(1)
            other.seek(12_345)
            other.write(bytes([was ^ 4]))
    for _ in range(2):
        with pytest.raises(FormatError, match="has been changed"):
            alloc.resume("w")
        assert alloc.paused() == {"w"}
        assert reserved(alloc) == 0
        alloc.inspection.check_invariants()
    if change == "a byte":
        with open(f"/proc/self/fd/{file}", "r+b", buffering=0) as other:
            other.seek(12_345)
            other.write(bytes([was]))
        alloc.resume("w")
        assert are_right(arrays)
    else:
        arrays.clear()
        alloc.resume("w")  # its contents are no longer needed
    assert files_of(tmp_path) == []
    del arrays


def refused_folder(alloc, folder, match):
    before = reserved(alloc)
    with pytest.raises(RequestError, match=match):
        alloc.pause("w", keep="file", folder=folder)
    assert alloc.paused() == set()
    assert reserved(alloc) == before
    alloc.inspection.check_invariants()


@LINUX
def test_a_folder_that_cannot_hold_the_file_is_refused_and_the_tag_stays_awake(alloc, tmp_path, monkeypatch):
    arrays = filled(alloc)
    refused_folder(alloc, tmp_path / "missing", "is missing")
    (tmp_path / "file").write_text("")
    refused_folder(alloc, tmp_path / "file", "not a folder")
    refused_folder(alloc, "/dev/shm", "on memory")
    real = os.statvfs

    def full(path):
        state = list(real(path))
        state[4] = 1
        return os.statvfs_result(state)

    with monkeypatch.context() as patched:
        patched.setattr(os, "statvfs", full)
        refused_folder(alloc, tmp_path, r"has \d+ bytes free, .* need \d+")
    for code in (errno.EACCES, errno.EROFS):

        def refuse(*arguments, code=code, **more):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse)
            refused_folder(alloc, tmp_path, "cannot hold a file")
    assert are_right(arrays)
    del arrays


@LINUX
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours_is_refused(alloc, tmp_path):
    arrays = filled(alloc)
    tmp_path.chmod(0o555)
    refused_folder(alloc, tmp_path, "cannot hold a file")
    del arrays


@LINUX
def test_a_process_that_is_killed_while_its_memory_sleeps_or_is_copied_leaves_nothing(tmp_path):
    program = """
        import os, sys
        import allotment
        from allotment._allocators.caching import copying

        copying.choose(lanes=2, span=4096)
        alloc = allotment.Allocator("host")
        with allotment.tag("w"):
            array = alloc.full(8 << 20, 7, "uint8")

        def ready(*done):
            print("ready", flush=True)
            sys.stdin.read()

        when = sys.argv[2]
        alloc.pause("w", keep="file", folder=sys.argv[1], progress=ready if when == "pausing" else None)
        if when == "asleep":
            ready()
        alloc.resume("w", progress=ready)
    """
    for when in ("pausing", "asleep", "resuming"):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), when],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert os.listdir(tmp_path) == []
        assert not [name for name in os.listdir("/dev/shm") if "allotment" in name]


def test_arguments_that_make_no_sense_are_refused_by_name(alloc, tmp_path):
    arrays = filled(alloc)
    for options, match in (
        ({"keep": "somewhere"}, 'keep is "host", "nothing" or "file"'),
        ({"keep": "nothing", "keep_host": True}, "keep_host"),
        ({"keep": "file", "keep_host": True}, "keep_host"),
        ({"folder": tmp_path}, 'folder is for keep="file"'),
    ):
        for operation in (lambda **given: alloc.pause("w", **given), allotment.sleep):
            with pytest.raises(RequestError, match=match):
                operation(**options)
    with pytest.raises(TypeError):
        alloc.pause("w", keep="file", folder=3)
    with pytest.raises(TypeError):
        alloc.pause("w", progress=3)
    with pytest.raises(PoolError):
        alloc.pause("unheard of", keep="file", folder=tmp_path)
    assert alloc.paused() == set()
    assert are_right(arrays)
    del arrays


@LINUX
def test_a_whole_process_sleeps_in_files_with_progress(alloc, tmp_path):
    arrays = filled(alloc), filled(alloc, "second")
    tags = filled_tags()
    with_contents = sum(bytes_to_keep(tag) > 0 for tag in tags)
    seen = []
    allotment.sleep("file", folder=tmp_path, progress=lambda *done: seen.append(done))
    assert alloc.paused() == {"w", "second"}
    assert len(files_of(tmp_path)) == len(tags)
    assert sum(done == total for done, total in seen) == with_contents
    allotment.wake()
    assert all(map(are_right, arrays))
    del arrays


# --- a bar ------------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.threads
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_person_at_a_terminal_sees_a_bar_that_is_gone_in_the_end(alloc, many_spans, monkeypatch, is_terminal):
    arrays = filled(alloc)
    terminal = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("allotment._allocators.caching.bar._AFTER", 0)
    monkeypatch.setattr("allotment._allocators.caching.bar._INTERVAL", 0)
    shown = []
    for operation in (alloc.pause, alloc.resume):
        operation("w", progress=True)
        shown.append(terminal.getvalue())
        terminal.seek(0)
        terminal.truncate()
    assert are_right(arrays)
    if is_terminal:
        for doing, text in zip(("pausing", "resuming"), shown, strict=True):
            *drawings, last = text.split("\r")[1:]
            assert all(drawing.startswith(f"{doing} 'w' [") for drawing in drawings)
            assert drawings[-1] == f"{doing} 'w' [{'#' * 30}] 0.0 of 0.0 GiB"
            assert last == "\x1b[K"
    else:
        assert shown == ["", ""]
    del arrays


def test_a_short_pause_draws_nothing(alloc, monkeypatch):
    arrays = filled(alloc)
    terminal = Terminal(True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("allotment._allocators.caching.bar._AFTER", 60)
    alloc.pause("w", progress=True)
    alloc.resume("w", progress=True)
    assert terminal.getvalue() == ""
    del arrays


def test_a_terminal_that_is_gone_does_not_stop_a_pause(alloc, monkeypatch):
    arrays = filled(alloc)
    terminal = Terminal(True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("allotment._allocators.caching.bar._AFTER", 0)

    def refuse(text):
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(terminal, "write", refuse)
    alloc.pause("w", progress=True)
    assert alloc.paused() == {"w"}
    alloc.resume("w", progress=True)
    assert are_right(arrays)
    del arrays


# --- children ---------------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("keep", ["host", "file"])
def test_a_child_that_cannot_use_the_device_keeps_none_of_the_contents(tmp_path, keep):
    program = f"""
        import ctypes, os, sys
        import allotment
        from allocators.caching.test_pausing_places import WithWords, files_of

        alloc = allotment.Allocator(WithWords())
        with allotment.tag("w"):
            block = alloc.malloc(3 << 20)
        ctypes.memset(block, 7, 3 << 20)
        alloc.pause("w", keep={keep!r}, folder={str(tmp_path) if keep == "file" else None!r})
        files = files_of({str(tmp_path)!r})
        from_parent, to_child = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(from_parent, 1)
            if {keep!r} == "host":
                told = set(bytes(alloc.sleep.contents_of(block, 3 << 20)))
            else:
                told = os.fstat(files[0]).st_size
            print(told, flush=True)
            os._exit(0)
        if os.fork() == 0:
            sys.exit()          # with its finalizers
        os.wait()
        alloc.resume("w")
        print(ctypes.string_at(block, 3 << 20) == bytes([7]) * (3 << 20), flush=True)
        os.write(to_child, b"1")
        os.waitpid(child, 0)
    """
    told = output_of(textwrap.dedent(program)).splitlines()
    assert told == ["True", "{0}" if keep == "host" else "0"]


class EqualToAll:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


class Lying(str):
    """Equals each text every second time."""

    turn = False

    def __eq__(self, other):
        self.turn = not self.turn
        return self.turn

    __hash__ = str.__hash__


def test_where_contents_are_kept_is_read_once(alloc, tmp_path):
    arrays = filled(alloc)
    with pytest.raises(RequestError, match='keep is "host", "nothing" or "file"'):
        alloc.pause("w", keep=EqualToAll())
    with pytest.raises(RequestError, match='keep is "host", "nothing" or "file"'):
        alloc.pause("w", keep=Lying("nowhere"))
    assert alloc.paused() == set()
    alloc.pause("w", keep=Lying("file"), folder=tmp_path)
    alloc.resume("w")
    assert are_right(arrays)
    del arrays
