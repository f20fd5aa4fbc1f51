"""Downloads of data sets that go well, break off, lie or never come, from servers on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from bymi import InputError
from bymi.datasets import (
    DATASETS,
    SOURCES,
    RemoteFile,
    Source,
    cache_folder,
    download,
    load_images,
)
from bymi.datasets.data_folders import FILE_NAMES
from tests.idx_files import line_of, nowhere, write_image_set  # noqa: F401 (an autouse fixture)


class Mirror(BaseHTTPRequestHandler):
    """Serves `content` at any path in one of several manners, and notes what it was asked for."""

    content: ClassVar[bytes]
    manner: ClassVar[str]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = bytes(len(self.content)) if self.manner == "wrong" else self.content
        self.send_response(404 if self.manner == "gone" else 200)
        if self.manner == "long":
            body += b"more"
        if self.manner == "endless":  # no length, and more than anybody asked for
            self.end_headers()
            while True:
                self.wfile.write(bytes(1 << 16))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2 if self.manner == "breaks off" else None])

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.asked.append("closed")

    def log_message(self, *args: object) -> None:
        pass


CONTENT = bytes(range(256)) * 1000


class Served:
    """Servers on this machine, each of one manner; `addresses` makes them mirrors."""

    def __init__(self) -> None:
        self.servers: list[ThreadingHTTPServer] = []
        self.asked: list[str] = []

    def address(self, manner: str) -> str:
        members = {"content": CONTENT, "manner": manner, "asked": self.asked}
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("SomeMirror", (Mirror,), members))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/set/"

    def source(self, *manners: str) -> Source:
        file = RemoteFile("a-file.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        return Source("some-set", tuple(map(self.address, manners)), (file,))


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    for server in served.servers:
        server.shutdown()
        server.server_close()


def left_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_fresh_download_tells_its_progress_and_is_not_repeated(tmp_path: Path, served: Served) -> None:
    seen: list[tuple[str, int, int]] = []
    source = served.source("well")
    download(source, tmp_path / "new" / "folder", lambda *step: seen.append(step))
    assert (tmp_path / "new" / "folder" / "a-file.gz").read_bytes() == CONTENT
    assert left_in(tmp_path / "new" / "folder") == {"a-file.gz": len(CONTENT)}
    assert seen[-1] == ("a-file.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    download(source, tmp_path / "new" / "folder")
    assert served.asked == ["/set/a-file.gz"]


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, served: Served) -> None:
    def interrupt(file: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(served.source("well"), tmp_path, interrupt)
    assert left_in(tmp_path) == {}


def test_a_file_that_is_there_but_wrong_is_fetched_again(tmp_path: Path, served: Served) -> None:
    (tmp_path / "a-file.gz").write_bytes(bytes(len(CONTENT)))
    download(served.source("well"), tmp_path)
    assert (tmp_path / "a-file.gz").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("manner", "words"),
    [
        ("wrong", "wrong checksum"),
        ("gone", "HTTP 404"),
        ("long", "expected 256000 bytes, got more"),
        ("endless", "expected 256000 bytes, got more"),
        ("breaks off", "broke off after 128000 of 256000 bytes"),
    ],
)
def test_a_bad_mirror_is_followed_by_the_next_and_named_at_the_end(
    tmp_path: Path, served: Served, manner: str, words: str
) -> None:
    bad = served.source(manner)
    with pytest.raises(InputError) as caught:
        download(bad, tmp_path)
    host = bad.mirrors[0].split("/")[2]
    assert line_of(caught) == (
        f"some-set: could not download a-file.gz ({host}: {words}); "
        "put a-file.gz in a folder and pass --data DIR or set BYMI_DATA"
    )
    assert left_in(tmp_path) == {}
    download(dataclasses.replace(bad, mirrors=(*bad.mirrors, served.address("well"))), tmp_path)
    assert left_in(tmp_path) == {"a-file.gz": len(CONTENT)}


def test_no_network_is_one_line_that_says_what_to_do(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    address = served.address("well")
    served.servers[-1].shutdown()
    served.servers.pop().server_close()
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(SOURCES["mnist"], mirrors=(address, address)))
    with pytest.raises(InputError) as caught:
        load_images("mnist")
    host = address.split("/")[2]
    assert line_of(caught) == (
        f"mnist: could not download train-images-idx3-ubyte.gz ({host}: Connection refused; {host}: Connection refused); "
        "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz "
        "in a folder and pass --data DIR or set BYMI_DATA"
    )


def test_downloads_into_one_folder_at_once_all_succeed(tmp_path: Path, served: Served) -> None:
    source = served.source("well")
    for attempt in range(5):
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda _: download(source, tmp_path / str(attempt)), range(6)))  # noqa: B023
        assert (tmp_path / str(attempt) / "a-file.gz").read_bytes() == CONTENT
        assert left_in(tmp_path / str(attempt)) == {"a-file.gz": len(CONTENT)}


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(InputError, match="timed out"):
            download(Source("some-set", (address,), (RemoteFile("x", 1, ""),)), tmp_path, timeout=0.2)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        download(Source("some-set", (), ()), tmp_path / "file" / "folder")
    assert "expected a folder to download some-set into" in line_of(caught)


def test_load_downloads_into_the_cache_once(tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image_set(tmp_path / "origin", train=20, test=10, side=4)
    contents = {path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()}
    files = tuple(RemoteFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items())
    address = served.address("well")
    handler = served.servers[-1].RequestHandlerClass
    monkeypatch.setattr(handler, "content", property(lambda self: contents[self.path.rsplit("/", 1)[1]]))
    monkeypatch.setitem(SOURCES, "mnist", Source("mnist", (address,), files))
    seen: list[str] = []
    assert load_images("mnist", progress=lambda file, done, total: seen.append(file)).train_images.shape == (20, 1, 4, 4)
    assert sorted(set(seen)) == sorted(contents)
    assert load_images("mnist").test_labels.shape == (10,)
    assert len(served.asked) == 4
    assert left_in(cache_folder("mnist")) == {name: len(data) for name, data in contents.items()}


def test_sources_are_well_formed() -> None:
    for name, source in SOURCES.items():
        assert source.name == name
        assert name in DATASETS
        assert [file.name for file in source.files] == [f"{stem}.gz" for stem in FILE_NAMES]
        assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in source.mirrors)
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in source.files)
