"""Fuzz readers under coverage guidance, which needs the extra `fuzz`.

    python tests/fuzz/run.py SECONDS [TARGET...]

fuzzes each target in a process of its own, all targets if none is named, and prints a line for
each. The folder build/fuzz/TARGET keeps inputs that reached new code, for the next time, and
`crash-*`, `timeout-*` or `oom-*`: the input of a finding. Mend what it shows, and copy the input to
tests/fixtures/findings/TARGET, where tests/fuzz/test_findings.py runs it from then on.
"""

import json
import random
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / "build" / "fuzz"
LIMITS = ["-max_len=8192", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096"]
LIMITS += ["-print_final_stats=1"]
sys.path[:0] = [str(HERE.parent)]


def fuzz(name: str, seconds: str) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["softbeam"]):
        from fuzz.targets import TARGETS, run_target
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(TARGETS[name].seeds):
        (folder / f"seed-{number}").write_bytes(content)

    def run(content: bytes) -> None:
        try:
            run_target(name, content)
        except BaseException:
            (folder / f"crash-{sha256(content).hexdigest()[:12]}").write_bytes(content)
            raise

    def change(content: bytes, largest: int, seed: int) -> bytes:
        other = exchanged(content, random.Random(seed)) if seed % 2 else b""
        return other if 0 < len(other) <= largest else atheris.Mutate(content, largest)

    options = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", *LIMITS]
    atheris.Setup([sys.argv[0], *options, str(folder)], run, custom_mutator=change)
    atheris.Fuzz()


ODD = [None, True, -1, 0, 1e308, 10**400, float("nan"), "", "x", "\ud800", [], {}, [[7]], {"a": 1}]


def exchanged(content: bytes, rng: random.Random) -> bytes:
    """A JSON object, or one in a line, with another value in a place; empty if there is none.

    Bytes that are changed one by one seldom remain JSON.
    """
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    try:
        parts = [json.loads(lines[place])]
        part: Any = parts
        while True:
            keys = list(part) if isinstance(part, dict) else range(len(part))
            key = rng.choice(keys)
            if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.2:
                break
            part = part[key]
        part[key] = rng.choice(ODD)
        lines[place] = json.dumps(parts[0]).encode()
    except (ValueError, RecursionError):
        return b""
    return b"\n".join(lines)


def fuzz_all(names: list[str], seconds: str) -> int:
    """Fuzz targets one after the other; returns 1 if there was a finding."""
    found = False
    for name in names:
        command = [sys.executable, __file__, seconds, name, "--here"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        units = re.search(r"number_of_executed_units:\s*(\d+)", text)
        said = "no finding" if done.returncode == 0 else "FINDING"
        print(f"{name:22} {units[1] if units else '?':>9} executions, {said}", flush=True)
        if done.returncode:
            found = True
            print(text[-3000:], flush=True)
    return int(found)


def main() -> int:
    seconds, *names = sys.argv[1:]
    if names[1:] == ["--here"]:
        fuzz(names[0], seconds)
    from fuzz.targets import TARGETS

    return fuzz_all(names or list(TARGETS), seconds)


if __name__ == "__main__":
    sys.exit(main())
