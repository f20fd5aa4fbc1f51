"""The one reader and the one writer: regular files of a size that was agreed on, whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bymi import InputError
from bymi.core import files
from bymi.core.errors import StorageError

DEEP = 100_000


def refusal(path: Path, *, limit: int = 100, links: bool = True) -> str:
    with pytest.raises(InputError) as caught:
        files.read_bytes(path, limit=limit, links=links)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Reading


def test_a_regular_file_up_to_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert files.read_bytes(path, limit=100) == b"x" * 100
    assert refusal(path, limit=99) == f"{path}: got 100 bytes, allowed: up to 99"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert "got 1099511627776 bytes, allowed: up to 100" in refusal(tmp_path / "sparse")


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    look = os.fstat
    monkeypatch.setattr(os, "fstat", lambda descriptor: os.stat_result([*look(descriptor)[:6], 1, *look(descriptor)[7:]]))
    assert refusal(path, limit=99) == f"{path}: it grew beyond 99 bytes while it was read"


def test_pipes_devices_folders_and_nothing_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == f"cannot read {tmp_path / 'pipe'}: not a regular file"
    assert refusal(Path("/dev/zero")) == "cannot read /dev/zero: not a regular file"
    assert refusal(Path("/dev/stdin")).startswith("cannot read /dev/stdin: ")
    assert refusal(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    assert refusal(tmp_path / "nothing") == f"cannot read {tmp_path / 'nothing'}: No such file or directory"
    assert refusal(Path("a\0b")).endswith("embedded null byte")


def test_a_pipe_is_not_even_opened(tmp_path: Path) -> None:
    """Its writer would be woken up, and killed for writing to nobody."""
    os.mkfifo(tmp_path / "pipe")
    refusal(tmp_path / "pipe")
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # still no reader has come
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)


def test_links_are_followed_only_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert files.read_bytes(tmp_path / "link", limit=1) == b"x"
    assert "a symbolic link, which is not followed here" in refusal(tmp_path / "link", links=False)
    (tmp_path / "to a pipe").symlink_to(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "to a pipe")


BAD: dict[str, tuple[bytes, str]] = {
    "NUL": (b'{"a": "\0"}', "it has a NUL at character 7"),
    "not UTF-8": (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    "deep lists": (b"[" * DEEP + b"]" * DEEP, "it is nested too deeply"),
    "deep tables": (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "it is nested too deeply"),
    "a long integer": (b"[" + b"9" * 5000 + b"]", "it has an integer of more than 4300 digits"),
    "no JSON": (b"{", "Expecting property name"),
}


@pytest.mark.parametrize("what", BAD)
def test_json_that_is_none_or_hostile_is_one_line(what: str, tmp_path: Path) -> None:
    content, words = BAD[what]
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        files.read_json(tmp_path / "x.json", limit=files.MEBIBYTE)
    assert str(caught.value).startswith(f"{tmp_path / 'x.json'} is not valid JSON: {words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = " + b"[" * DEEP, "it is nested too deeply"),
        (b"a = " + b"9" * 5000, "it has an integer of more than 4300 digits"),
        (b"a = '\0'", "it has a NUL at character 5"),
        (b"a = = 1", "Invalid value"),
    ],
)
def test_hostile_toml_is_one_line(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        files.parse_toml(content)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert files.parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


# Writing


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"another"):
        files.write_bytes(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, "readable for others, as any file"


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_what_cannot_be_written_leaves_the_old_file(
    function: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def refuse(*words: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        with pytest.raises(StorageError) as caught:
            files.write_bytes(path, b"new")
    assert str(caught.value) == f"cannot write {path}: {os.strerror(number)}"
    assert caught.value.exit_code == 9
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing half written"


def test_a_real_full_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full in place of the file beside: the system itself says that there is no room."""
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode: real(Path("/dev/full"), "wb"))
    with pytest.raises(StorageError, match="No space left on device"):
        files.write_bytes(tmp_path / "file", b"x" * 100_000)


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *words: (order.append("name"), replace(*words)))
    files.write_bytes(tmp_path / "file", b"x")
    assert order == ["file", "name", "folder"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"somebody's")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / f".link.{os.getpid()}.tmp").symlink_to(tmp_path / "target")
    files.write_bytes(tmp_path / "link", b"ours")
    assert (tmp_path / "target").read_bytes() == b"somebody's"
    assert (tmp_path / "link").read_bytes() == b"ours"
    assert not (tmp_path / "link").is_symlink()


def test_devices_pipes_and_folders_are_not_replaced(tmp_path: Path) -> None:
    """As the superuser it could be done: then there would be no /dev/null any more."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(StorageError, match="there is something that is not a regular file"):
            files.write_bytes(tmp_path / name, b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


KILLED = """
import os, signal, sys
from pathlib import Path
from bymi.core import files
with files.writing(Path(sys.argv[1])) as file:
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), files.writing(tmp_path / "file"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
