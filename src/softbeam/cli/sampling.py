"""Commands for masked language models: certify."""

from softbeam.cli.parsing import parser, say_json
from softbeam.errors import UserError


def certify(words: list[str]) -> int:
    """Is a sampler right? softbeam certify KERNEL [--energy local|raw] [--json]"""
    made = parser(
        "certify",
        "Build a kernel's whole transition matrix on a small masked language model and check it; "
        "the exit code is 0 only if every certificate holds. KERNEL is a name (list shows them) or "
        "module:function, a function of a masked language model and an energy.",
    )
    made.add_argument("kernel", type=str, help="name, module:function, or list")
    made.add_argument("--energy", type=str, choices=["local", "raw"], default="local")
    made.add_argument("--words", type=int, default=3, help="size of the vocabulary")
    made.add_argument("--time", type=int, default=3, help="length of the texts")
    made.add_argument("--seed", type=int, default=0, help="of the model and of all samples")
    made.add_argument("--json", action="store_true", help="certificates as a last line of JSON")
    parsed = made.parse_args(words)
    for name, low, high in (("words", 2, 6), ("time", 2, 4)):
        if not low <= parsed[name] <= high:
            raise UserError(f"--{name} {parsed[name]}: must be from {low} to {high}")
    from softbeam.certify import KERNELS, certificates

    if parsed.kernel == "list":
        print("\n".join(f"{name:20} {kernel.what}" for name, kernel in KERNELS.items()))
        return 0
    names = ("energy", "words", "time", "seed")
    found = certificates(parsed.kernel, **{name: parsed[name] for name in names})
    for one in found:
        said = "holds" if one.holds else "FAILS"
        print(f"{said}  {one.name:28} {one.value:10.2e} (limit {one.limit:.0e})  {one.detail}")
    if parsed.json:
        rows = [one._asdict() for one in found]
        holds = all(one.holds for one in found)
        say_json({"kernel": parsed.kernel, "holds": holds, "certificates": rows})
    return 0 if all(one.holds for one in found) else 1
