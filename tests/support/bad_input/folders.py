"""Broken folders: runs, stopped runs, masked language models, samples, published checkpoints."""

import torch

from support.bad_input.case import FOLDER, SLY, Case, Cases
from support.bad_input.files import SPLITS
from support.bad_input.things import (
    SAMPLE,
    SHORT,
    TAGS,
    Change,
    as_json,
    cut,
    facts,
    fairseq,
    first,
    line,
    recoded,
    replaced,
    set_key,
    tensors,
)

FOLDERS = Cases()
NAN = float("nan")

# Runs with pieces broken

EMBED = "embed.weight"
RUN = "evaluate run --quiet"


def another(name: str, change) -> Change:
    """A tensor in place of the one of that name."""
    return tensors(lambda found: found.update({name: change(found[name])}))


FOLDERS.broken(
    "weights",
    RUN,
    "run/model.safetensors",
    {
        "missing": (None, "run has no weights (model.safetensors)"),
        "a folder": (FOLDER, "run has no weights (model.safetensors)"),
        "nothing": b"",
        "half": cut(),
        "text": b"hello" * 9,
        "a huge header": b"\xff" * 8 + b"{}",
        "no tensor": tensors(dict.clear),
        "a missing tensor": (tensors(lambda t: t.pop(EMBED)), "run/model.safetensors", EMBED),
        "a tensor too many": (tensors(set_key("more", torch.ones(2))), "do not fit", "more"),
        "another shape": (another(EMBED, lambda t: t[:-1].clone()), "do not fit", EMBED),
        "fewer axes": (another(EMBED, torch.flatten), "do not fit", EMBED),
        "whole numbers": (another(EMBED, torch.Tensor.long), f"{EMBED} is I64"),
        "NaN": (another(EMBED, lambda t: t.fill_(NAN)), f"are not all finite: {EMBED}"),
        "one infinity": (another("bos", lambda t: t / 0), "are not all finite: bos"),
    },
)
WORDS = "is not a vocabulary that softbeam wrote"
VOCABULARY = {
    "missing": (None, "run/target.json cannot be read"),
    "a folder": (FOLDER, "run/target.json cannot be read"),
    "half": (cut(), f"run/target.json {WORDS}"),
    "a list": (b"[]", f"run/target.json {WORDS}: expected a JSON object, found a list"),
    "UTF-16": (recoded("utf-16"), f"run/target.json {WORDS}: 'utf-8' codec"),
    "nested too deeply": (b"[" * 100_000, f"run/target.json {WORDS}: maximum recursion"),
    "an unknown kind": (
        as_json(set_key("kind", "frob")),
        "its kind is 'frob'; there are words",
    ),
    "no tokens": (as_json(lambda v: v.pop("tokens")), "there are words with tokens"),
    "no specials": (as_json(lambda v: v.pop("specials")), "must be lists of strings"),
    "numbers": (as_json(set_key("tokens", [1, 2, 3])), "must be lists of strings"),
    "half of a letter": (as_json(set_key("tokens", ["\ud800"])), "must be lists of strings"),
    "a word twice": (as_json(set_key("tokens", ["N", "N", "V"])), "'N' is in it twice"),
    "a word less": (as_json(lambda v: v["tokens"].pop()), "run/model.safetensors do not fit"),
    "specials of others": (
        as_json(set_key("specials", ["<pad>"])),
        "has the special tokens ['<pad>']",
    ),
}
FOLDERS.broken("vocabulary", RUN, "run/target.json", VOCABULARY)
NO_PAD = (as_json(set_key("specials", ["<unk>"])), "run/source.json: <pad> must be its first")
MORE = (as_json(lambda v: v["tokens"].append("new")), "run/model.safetensors do not fit")
FOLDERS.broken(
    "source vocabulary", RUN, "run/source.json", {"a word more": MORE, "no padding": NO_PAD}
)
NO_END = (as_json(set_key("specials", ["<pad>", "x", "<unk>"])), "mt/target.json", "</s>")
FOLDERS.broken(
    "target vocabulary", "evaluate mt --quiet", "mt/target.json", {"no end mark": NO_END}
)
NO_MASK = (as_json(set_key("specials", ["<pad>", "<unk>", "x"])), "cm/target.json", "<mask>")
MASKED = "evaluate cm --quiet --search mask-predict"
FOLDERS.broken("masked vocabulary", MASKED, "cm/target.json", {"no mask": NO_MASK})


def without_padding(value: dict) -> None:
    value["model"]["added_tokens"].pop(0)
    value["model"]["model"]["vocab"]["<pod>"] = value["model"]["model"]["vocab"].pop("<pad>")


SUBWORDS = {
    "no model": (as_json(lambda v: v.pop("model")), f"bpe/source.json {WORDS}"),
    "half of a model": (as_json(lambda v: v["model"].pop("model")), "not a model of subwords"),
    "another version": (
        as_json(lambda v: v["model"].update(version="9")),
        "not a model of subwords",
    ),
    "no padding": (as_json(without_padding), "a model of subwords without <pad>"),
}
FOLDERS.broken("subwords", "evaluate bpe --quiet", "bpe/source.json", SUBWORDS)
CONFIG = "run/config.yaml is not a run configuration"
LOADS_CODE = """objective:
    class_path: softbeam.objectives.likelihood.Distillation
    init_args: {teacher: sly, load: os.mkdir}"""
FOLDERS.broken(
    "configuration",
    RUN,
    "run/config.yaml",
    {
        "missing": (None, "run is not a run folder: it has no config.yaml"),
        "nothing": (b"", CONFIG),
        "text": (b"hello", f"{CONFIG}: expected a mapping, found a str"),
        "a list": (b"- 1\n- 2\n", f"{CONFIG}: expected a mapping, found a list"),
        "bytes": (bytes(range(256)), CONFIG),
        "UTF-16": (recoded("utf-16"), CONFIG),
        "an open bracket": (b"seed: [1\n", CONFIG),
        "an unknown field": (lambda c: c + b"frob: 1\n", CONFIG, "frob"),
        "a wrong type": (lambda c: c + b"seed: many\n", CONFIG, "many"),
        "an unknown model": (replaced("Lstm", "Frob"), CONFIG, "Frob"),
        "code for a model": (replaced("Lstm", "os.system"), CONFIG, "os.system"),
        "code for a function": (
            replaced("objective: null", LOADS_CODE),
            CONFIG,
            "'load' is not accepted",
        ),
        "a tag of Python": (lambda c: c + b"x: !!python/object/apply:os.mkdir [sly]\n", CONFIG),
        "another width": (replaced("hidden: 8", "hidden: 9"), "run/model.safetensors do not fit"),
        "no width": (replaced("hidden: 8", "hidden: 0"), "hidden 0: must be at least 1"),
    },
)
GIVEN = f"{SPLITS} --data.dev dev.conll --config x.yaml"
YAML = {
    "an unknown field": (b"frob: 1\n", "'frob' is not accepted (with x.yaml)"),
    "a wrong type": (b"seed: many\n", "seed", "many", "(with x.yaml)"),
    "a list": (b"- 1\n", "x.yaml is not a run configuration: expected a mapping, found a list"),
    "bytes": (b"seed: \xff\n", "x.yaml is not a run configuration"),
    "an open bracket": (b"seed: [1\n", "x.yaml is not a run configuration"),
    "a tag of Python": (b"seed: !!python/object/apply:os.mkdir [sly]\n", "x.yaml is not a run"),
}
FOLDERS.broken("given configuration", GIVEN, "x.yaml", YAML)
SUMMARIES = {
    "half": (b"{", "run/summary.json is not a run's summary"),
    "a list": (b"[]", "run/summary.json is not a run's summary: expected a JSON object"),
    "an epoch of text": (as_json(set_key("epoch", "x")), "summary: its epoch is 'x'"),
}
FOLDERS.broken("summary", RUN, "run/summary.json", SUMMARIES)
FOLDERS.broken("data of a run", RUN, "train.conll", {"gone": None, "broken": b"x\n"})
FOLDERS.broken("reported summary", "report run", "run/summary.json", SUMMARIES)
ROW = "is not a row of a run's metrics"
METRICS = {
    "half a row": (b'{"kind": "tr\n', f"run/metrics.jsonl, line 1, {ROW}"),
    "another kind of row": (b'{"a": 1}\n', f"run/metrics.jsonl, line 1, {ROW}: it has no kind"),
    "a list": (b"[]\n", f"run/metrics.jsonl, line 1, {ROW}: expected a JSON object"),
    "no loss": (b'{"kind": "train", "stage": "x", "update": 1}\n', f"{ROW}: it has no loss"),
    "a loss of text": (b'{"kind": "train", "loss": "x"}\n', f"{ROW}: its loss is 'x'"),
    "latin-1": (b'{"kind": "\xe4"}\n', f"run/metrics.jsonl, line 1, {ROW}: 'utf-8' codec"),
}
FOLDERS.broken("metrics", "report run", "run/metrics.jsonl", METRICS)
ENVIRONMENT = {
    "half": (b"{", "run/environment.json is not a run's environment"),
    "files of text": (as_json(set_key("files", "x")), "environment: its files is 'x'"),
}
FOLDERS.broken("environment", "report run", "run/environment.json", ENVIRONMENT)
BYTES = {"bytes": (b"\xff\xfe", "run/config.yaml cannot be read")}
FOLDERS.broken("reported configuration", "report run", "run/config.yaml", BYTES)

# Records of tables and figures

TABLE = "tables/table-5.3.json is not the record of a t"


def claimed(**changed) -> Change:
    return as_json(lambda record: record["claims"][0].update(changed))


RECORDS = {
    "half": (cut(), f"{TABLE}arget"),
    "a list": (b"[]", f"{TABLE}arget: expected a JSON object, found a list"),
    "no claims": (as_json(lambda r: r.pop("claims")), f"{TABLE}arget: it has no claims"),
    "a claim of text": (as_json(set_key("claims", ["x"])), "claim 1: expected a JSON object"),
    "an effect of text": (claimed(effect="x"), "claim 1: its effect is 'x'"),
    "no verdict": (as_json(lambda r: r["claims"][0].pop("verdict")), "claim 1: it has no verdict"),
    "half an interval": (claimed(interval=[1.0]), "claim 1: its interval is [1.0]"),
}
SHOWN = {
    "rows of text": (as_json(set_key("rows", "x")), f"{TABLE}able: its rows is 'x'"),
    "no seeds": (as_json(lambda r: r.pop("seeds")), f"{TABLE}able: it has no seeds"),
    "uneven rows": (as_json(lambda r: r["rows"].update(x={})), "do not have the same columns"),
    "cells of text": (
        as_json(lambda r: r["rows"]["start"].update(dev="x")),
        "its rows is {'start'",
    ),
}
FOLDERS.broken("record", "report tables", "tables/table-5.3.json", RECORDS | SHOWN)
CLAIMS = "report claims --results tables"
FOLDERS.broken("claims", CLAIMS, "tables/table-5.3.json", RECORDS)
FIGURE = "tables/figure-6.2.svg"
SCRIPT = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
DRAWINGS = {
    "nothing": (b"", f"{FIGURE} is not an SVG figure"),
    "half": (cut(), f"{FIGURE} is not an SVG figure"),
    "bytes": (b"\xff", f"{FIGURE} is not an SVG figure"),
    "a script": (SCRIPT, f"{FIGURE} holds script"),
    "a handler": (replaced("<svg ", "<svg onload='alert(1)' "), f"{FIGURE} holds onload=alert(1)"),
    "an address": (
        replaced("</svg>", "<image href='http://x/y.png'/></svg>"),
        f"{FIGURE} holds href=http://x/y.png",
    ),
}
FOLDERS.broken("figure", "report tables", FIGURE, DRAWINGS)

# Runs that were stopped

RESUME = " ".join([*TAGS, *SHORT, "--resume --out stopped"])
FILE = "stopped/checkpoint.safetensors"
MOMENT = f"{FILE} holds no moment of a training"
SHAPE = "is of shape (2,), not"


def at(beginning: str, change) -> Change:
    """A change of the tensors by the name of the first that begins so."""
    return tensors(lambda found: change(found, first(found, beginning)))


CHECKPOINTS = {
    "nothing": (b"", f"{FILE} is not a checkpoint"),
    "half": (cut(), f"{FILE} is not a checkpoint"),
    "text": (b"hello" * 10, f"{FILE} is not a checkpoint"),
    "no facts": (tensors(lambda t: None, keep=False), f"{FILE} is not a checkpoint"),
    "a missing weight": (
        at("model.", dict.pop),
        "the checkpoint has no model.bos, of shape (128,)",
    ),
    "another shape": (
        at("model.", lambda t, n: t.update({n: torch.ones(2)})),
        f"model.bos {SHAPE}",
    ),
    "NaN": (
        at("model.", lambda t, n: t[n].fill_(NAN)),
        "model.bos holds numbers that are not finite",
    ),
    "a tensor too many": (tensors(set_key("model.frob", torch.ones(2))), "has model.frob, which"),
    "no random state": (tensors(lambda t: t.pop("random.own")), "has no random.own"),
    "a short random state": (
        tensors(set_key("random.torch", torch.ones(3).byte())),
        "random.torch is no random state",
    ),
    "fractions for a random state": (
        tensors(set_key("random.torch", torch.ones(3))),
        "random.torch is no random state",
    ),
    "half of the optimizer": (at("optimizer.", dict.pop), "has no optimizer.0.exp_avg, of shape"),
    "another shape of the optimizer": (
        at("optimizer.", lambda t, n: t.update({n: torch.ones(2)})),
        f"optimizer.0.exp_avg {SHAPE}",
    ),
    "a foreign parameter": (
        tensors(set_key("optimizer.999.exp_avg", torch.ones(2))),
        "has optimizer.999, but there are 17 parameters",
    ),
    "no number of a parameter": (tensors(set_key("optimizer.x.y", torch.ones(2))), "optimizer.x"),
    "a fact missing": (facts(lambda f: f.pop("best")), MOMENT),
    "a fact too many": (facts(set_key("frob", 1)), MOMENT),
    "an epoch of text": (facts(set_key("epoch", "x")), MOMENT),
    "a negative count": (facts(set_key("update", -1)), MOMENT),
    "a negative log": (facts(set_key("logged", -1)), MOMENT),
    "a stage that is not there": (facts(set_key("stage", 7)), "is of stage 8, but there are 1"),
    "more log than there is": (facts(set_key("logged", 10**9)), "stopped/metrics.jsonl: the check"),
}
FOLDERS.broken("resume", RESUME, FILE, CHECKPOINTS)
FOLDERS.add(
    "resume: other settings",
    Case(f"{RESUME} --seed 7", ("stopped holds a run with other settings",)),
)
LOG = {"gone": (None, "stopped/metrics.jsonl: the checkpoint says")}
FOLDERS.broken("resumed log", RESUME, "stopped/metrics.jsonl", LOG)
NOT_A_RUN = "stopped/config.yaml is not a run configuration"
OTHER = {"half": (cut(), NOT_A_RUN), "bytes": (b"\xff", NOT_A_RUN)}
FOLDERS.broken("resumed configuration", RESUME, "stopped/config.yaml", OTHER)
SMALLER = {
    "gone": None,
    "a word less": (as_json(lambda v: v["tokens"].pop()), "encoder.embed.weight"),
}
FOLDERS.broken("resumed vocabulary", RESUME, "stopped/source.json", SMALLER)

# Masked language models as folders

MLM, LOADED = "score --quiet --mlm mlm --text ACD", "'mlm' cannot be loaded as a masked LM"
FOLDERS.broken(
    "masked LM",
    MLM,
    "mlm/config.json",
    {
        "no configuration": (None, LOADED),
        "half a configuration": (cut(), LOADED),
        "an empty configuration": (b"{}", LOADED),
        "a list for a configuration": (b"[]", LOADED),
        "a configuration of bytes": (bytes(range(256)), LOADED),
        "an unknown model": (as_json(set_key("model_type", "frob")), LOADED, "frob"),
        "a model without masks": (as_json(set_key("model_type", "gpt2")), LOADED, "GPT2Config"),
        "a width of text": (as_json(set_key("hidden_size", "wide")), LOADED, "hidden_size"),
        "no width": (as_json(set_key("hidden_size", 0)), LOADED),
        "heads that do not divide": (as_json(set_key("num_attention_heads", 7)), LOADED),
        "an unknown activation": (as_json(set_key("hidden_act", "frob")), LOADED, "frob"),
        "another width": (
            as_json(set_key("intermediate_size", 99)),
            "does not fit its configuration",
        ),
        "another vocabulary": (as_json(set_key("vocab_size", 9)), "does not fit its configuration"),
        "more layers": (
            as_json(set_key("num_hidden_layers", 9)),
            "its checkpoint lacks bert.encoder",
        ),
    },
)
TOKENIZER = {"half": (cut(), LOADED), "empty": (b"{}", LOADED), "text": (b"hello", LOADED)}
FOLDERS.broken("masked LM's tokenizer", MLM, "mlm/tokenizer.json", TOKENIZER)
NO_TOKEN = (as_json(lambda c: c.pop("mask_token")), "'mlm' cannot be used", "no mask token")
FOLDERS.broken("masked LM's tokens", MLM, "mlm/tokenizer_config.json", {"no mask": NO_TOKEN})
FOLDERS.broken(
    "masked LM's weights",
    MLM,
    "mlm/model.safetensors",
    {
        "none": (None, LOADED, "model.safetensors"),
        "nothing": (b"", LOADED),
        "half": (cut(), LOADED),
        "text": (b"hello" * 10, LOADED),
        "a missing tensor": (at("bert.", dict.pop), "its checkpoint lacks bert.embeddings"),
        "another shape": (at("", lambda t, n: t.update({n: torch.ones(3)})), "has the shape (3,)"),
        "NaN": (at("", lambda t, n: t[n].fill_(NAN)), "'mlm' cannot be used", "not all finite"),
    },
)
PICKLED = {"mlm/model.safetensors": None, "mlm/pytorch_model.bin": SLY}
FOLDERS.add("masked LM: pickled weights", Case(MLM, (LOADED,), PICKLED))
BARE = {"mlm/tokenizer.json": None, "mlm/tokenizer_config.json": None}
FOLDERS.add("masked LM: no tokenizer", Case(MLM, ("'mlm' cannot be",), BARE))
FOLDERS.add(
    "masked LM: an empty folder", Case("score --mlm d --text A", ("'d' cannot be",), {"d/": None})
)

# Files of samples

STOPPED = " ".join([*SAMPLE, "--checkpoint-every 0 --resume --out stopped.jsonl"])
HEADER = "stopped.jsonl is not a file of samples"
SAMPLES = {
    "nothing": (b"", HEADER),
    "text": (b"hello\n", HEADER),
    "a list for a header": (b"[]\n", f"{HEADER}: expected a JSON object, found a list"),
    "another header": (b'{"texts": []}\n', f"{HEADER}: it has no settings"),
    "latin-1": (b'{"texts": "\xe4"}\n', f"{HEADER}: 'utf-8' codec"),
    "a header nested too deeply": (b"[" * 100_000, f"{HEADER}: maximum recursion"),
    "another model": (
        line(0, as_json(set_key("mlm", "x"))),
        "stopped.jsonl was started with mlm 'x'",
    ),
    "a list for settings": (
        line(0, as_json(set_key("settings", []))),
        f"{HEADER}: its settings is",
    ),
    "cut": (cut(0.9), "stopped.jsonl: the checkpoint says"),
    "a folder": (FOLDER, "stopped.jsonl cannot be read"),
}
FOLDERS.broken("samples", STOPPED, "stopped.jsonl", SAMPLES)
GO_ON, NO_MOMENT = (
    "cannot resume from stopped.jsonl.checkpoint",
    "checkpoint is not a checkpoint of sampling",
)
CHAINS = {
    "nothing": (b"", "stopped.jsonl.checkpoint is not a checkpoint"),
    "half": (cut(), "stopped.jsonl.checkpoint is not a checkpoint"),
    "no facts": (facts(dict.clear), NO_MOMENT),
    "no chains": (tensors(lambda t: t.pop("tokens")), GO_ON),
    "no random state": (tensors(lambda t: t.pop("random")), GO_ON),
    "another length": (another("tokens", lambda t: t[:, 1:].clone()), GO_ON, "of shape"),
    "unknown tokens": (another("tokens", lambda t: t.fill_(10**6)), GO_ON),
    "other texts": (another("tokens", lambda t: t.flip(1)), GO_ON),
    "NaN": (another("energy", lambda t: t.fill_(NAN)), GO_ON),
    "a sweep of text": (facts(set_key("sweep", "x")), NO_MOMENT),
    "a negative sweep": (facts(set_key("sweep", -1)), NO_MOMENT),
    "a sweep behind the end": (facts(set_key("sweep", 99)), "sweep 99: must be at most 4"),
    "a group behind the end": (facts(set_key("group", 9)), "group 9: must be below 1"),
    "a negative length": (facts(set_key("bytes", -1)), NO_MOMENT),
}
FOLDERS.broken("chains", STOPPED, "stopped.jsonl.checkpoint", CHAINS)
UNSHOWN = {
    "only a header": (lambda c: c.splitlines()[0] + b"\n", "done.jsonl has no samples yet"),
    "half a row": (line(2, cut()), "done.jsonl, line 3, is not a row of samples"),
    "no energy": (line(2, as_json(lambda r: r.pop("energy"))), "line 3, is not a row of samples"),
    "another chain": (line(2, as_json(set_key("chain", 7))), "are not complete sweeps of 8 chains"),
}
FOLDERS.broken("shown samples", "report done.jsonl", "done.jsonl", UNSHOWN)
DONE = " ".join([*SAMPLE, "--resume --out done.jsonl"])
DONE_FILE = "done.json is not the summary of a file of samples"
ENDS = {
    "half": (b"{", DONE_FILE),
    "a list": (b"[]", f"{DONE_FILE}: expected a JSON object"),
    "other things": (b"{}", f"{DONE_FILE}: it has no header"),
    "no texts": (as_json(lambda s: s.pop("texts")), f"{DONE_FILE}: it has no texts"),
}
FOLDERS.broken("sample summary", DONE, "done.json", ENDS)
FOLDERS.add(
    "samples: other settings",
    Case(f"{DONE} --seed 5", ("done.jsonl was started with seed 1, not 5",)),
)

# Published checkpoints

PT, FITS = "fairseq/checkpoint.pt", "fairseq/checkpoint.pt does not fit its arguments"
CONVERT = f"models convert {PT} --source-dict fairseq/de.txt --target-dict fairseq/en.txt --out "
NOT_ONE, FC1 = f"{PT} is not a fairseq checkpoint", "encoder.layers.0.fc1.weight"


def argued(**changed) -> Change:
    return fairseq(lambda content: vars(content["args"]).update(changed))


def weighed(change) -> Change:
    return fairseq(lambda content: change(content["model"]))


PUBLISHED = {
    "no file": (None, f"{PT} cannot be read"),
    "a folder": (FOLDER, f"{PT} cannot be read"),
    "nothing": (b"", NOT_ONE),
    "text": (b"hello", NOT_ONE),
    "half": (cut(), NOT_ONE),
    "code": (SLY, NOT_ONE),
    "no model": (fairseq(lambda c: c.pop("model")), NOT_ONE),
    "no arguments": (fairseq(lambda c: c.pop("args")), NOT_ONE),
    "arguments of nothing": (fairseq(set_key("args", None)), NOT_ONE),
    "a list for a model": (fairseq(set_key("model", [])), f"{NOT_ONE}: its model is a list"),
    "another architecture": (argued(arch="frob"), f"{PT}: arch 'frob', but"),
    "an argument missing": (fairseq(lambda c: delattr(c["args"], "encoder_layers")), FITS),
    "an argument of text": (argued(encoder_layers="x"), FITS),
    "heads that do not divide": (
        argued(encoder_attention_heads=3, decoder_attention_heads=3),
        f"{FITS}: heads 3: must divide the width, 8",
    ),
    "another width": (argued(encoder_embed_dim=16), FITS),
    "more layers": (argued(encoder_layers=9, decoder_layers=9), f"{FITS}: no 'encoder.layers.2"),
    "a missing tensor": (weighed(lambda m: m.pop(FC1)), f"{FITS}: no '{FC1}'"),
    "no embeddings": (weighed(lambda m: m.pop("encoder.embed_tokens.weight")), "0 encoder embed"),
    "another shape": (weighed(set_key(FC1, torch.ones(2, 2))), FITS),
    "a number for a tensor": (weighed(set_key(FC1, 1)), f"{FC1} is no tensor of finite numbers"),
    "NaN": (weighed(lambda m: m[FC1].fill_(NAN)), f"{FC1} is no tensor of finite numbers"),
}
FOLDERS.broken("convert", CONVERT + "made", PT, PUBLISHED)
DE = "fairseq/de.txt"
DICTIONARY = {
    "no file": (None, f"{DE} cannot be read"),
    "nothing": (b"", f"{DE} has no line"),
    "no count": (b"der\n", f"{DE}, line 1: expected 'token count', found 'der'"),
    "latin-1": (b"\xe4 7\n", f"{DE}, line 1: expected UTF-8 text"),
    "UTF-16": ("der 7\n".encode("utf-16"), f"{DE}, line 1: expected UTF-8 text"),
    "a NUL byte": (b"d\0r 7\n", f"{DE}, line 1: expected UTF-8 text, found a NUL byte"),
    "a token twice": (b"der 7\nder 7\n", f"{DE}: a vocabulary needs distinct tokens, but 'der'"),
    "another size": (b"der 7\n", f"{PT}: 9 encoder embeddings, but 6 tokens"),
}
FOLDERS.broken("converted dictionary", CONVERT + "made", DE, DICTIONARY)
for place in ("in.txt", "in.txt/x"):
    FOLDERS.add(f"convert to {place}", Case(CONVERT + place, (f"{place} cannot be written",)))
