"""Read YAML without aliases, by which a small file can grow without bound or contain itself."""

from typing import Any

import yaml
from jsonargparse import get_loader

DEEPEST = 50  # levels of lists and mappings
jsonargparse_yaml = get_loader("yaml")  # reads 1e-3 as a number, which plain YAML does not


def load_plain(text: str) -> Any:
    """Read a YAML text; raises YAMLError if it has aliases or is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"the alias *{event.anchor} is refused; write the value again")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"nested more than {DEEPEST} levels deep")
    return jsonargparse_yaml(text)
