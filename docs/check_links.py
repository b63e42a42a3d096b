"""Check the links inside the built site: `python docs/check_links.py docs/_build/html`.

A page that loads anything from another site is a fault too: the site has to work offline.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


class Broken(NamedTuple):
    page: str
    link: str
    why: str


def broken(site: Path) -> list[Broken]:
    """List the links of all pages that lead nowhere, and what pages load from other sites."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    return [
        Broken(str(path.relative_to(site)), link, why)
        for path, page in pages.items()
        for link, loaded in [*((x, False) for x in page.links), *((x, True) for x in page.loads)]
        if (why := fault(link, path, pages, loaded=loaded))
    ]


def fault(link: str, path: Path, pages: dict[Path, Page], *, loaded: bool) -> str:
    """Say what is wrong with a link of the page at a path; an empty string if nothing is."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if loaded and parts.scheme != "data" else ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "no such file"
    if target not in pages or not parts.fragment:
        return ""
    return "" if unquote(parts.fragment) in pages[target].anchors else "no such anchor"


def main(site: Path) -> int:
    found = broken(site.resolve())
    for one in found:
        print(f"{one.page}: {one.link}: {one.why}", file=sys.stderr)
    print(f"{site}: {len(found)} broken links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
