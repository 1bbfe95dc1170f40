"""A file that is replaced has the old content or the new, whatever fails."""

import os
import pickle
import stat
import subprocess
import sys

import pytest

import allotment
from allotment._allocators.files import replaced

HISTORY_WITHOUT_ROOM = """
import resource, signal, sys
import allotment
allocator = allotment.Allocator("sim:1GiB")
allocator.record_history()
for _ in range(20000):
    allocator.free(allocator.malloc(512))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    allocator.history.dump_snapshot(sys.argv[1])
except OSError as error:
    assert error.filename == sys.argv[1], error
    print("refused")
"""


def test_a_snapshot_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"the old one")
    done = subprocess.run(
        [sys.executable, "-c", HISTORY_WITHOUT_ROOM, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["snapshot.pickle"]


@pytest.mark.parametrize("kind", ["caching", "pluggable"])
def test_a_snapshot_takes_the_place_of_the_old_file(tmp_path, kind):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"the old one")
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    if kind == "caching":
        allocator = allotment.Allocator("sim:1GiB")
    else:
        allocator = allotment.PluggableAllocator(lambda *_: 4096, lambda *_: None)
    allocator.history.dump_snapshot(link)
    assert "segments" in pickle.loads(path.read_bytes())
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "snapshot.pickle"]


def test_what_fails_on_the_way_leaves_no_trace(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(KeyError), replaced(path) as file:
        file.write(b"half")
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_errors_name_the_requested_file(tmp_path):
    path = tmp_path / "missing" / "snapshot.pickle"
    with pytest.raises(FileNotFoundError) as caught:
        allotment.Allocator("sim:1GiB").history.dump_snapshot(path)
    assert caught.value.filename == str(path)
    assert str(caught.value) == f"[Errno 2] No such file or directory: {str(path)!r}"
    with pytest.raises(IsADirectoryError) as caught:
        allotment.Allocator("sim:1GiB").history.dump_snapshot(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_what_is_not_a_plain_file_is_written_as_it_is():
    with replaced("/dev/null") as file:
        file.write(b"anything")
    assert not stat.S_ISREG(os.stat("/dev/null").st_mode)


def test_a_file_written_anew_never_runs_with_its_owners_rights(tmp_path):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o4751)
    with replaced(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o751
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_permissions_that_another_user_chose_are_not_kept(tmp_path):
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o666)
    os.chown(path, 64_001, 64_001)
    with replaced(path) as file:
        assert not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IWOTH
    assert path.stat().st_uid == 0
    assert not stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH


def test_links_are_followed_where_the_system_follows_them(tmp_path, monkeypatch):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"the old one")
    link.symlink_to(target)

    real = os.stat

    def refuse(path, **how):
        if path == str(link):  # as Linux does in /tmp, if the link belongs to another user
            raise PermissionError(13, os.strerror(13), path)
        return real(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        with pytest.raises(PermissionError), replaced(link) as file:
            file.write(b"a new one")
    assert target.read_bytes() == b"the old one"


def test_a_link_to_nothing_leads_to_the_new_file(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    with replaced(link) as file:
        file.write(b"a new one")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"a new one"


def test_a_path_can_be_bytes(tmp_path):
    with replaced(os.fsencode(tmp_path / "file")) as file:
        file.write(b"content")
    assert os.listdir(tmp_path) == ["file"]
