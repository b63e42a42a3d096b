"""SVG drawings for pages, rebuilt from the few elements and attributes that matplotlib writes.

A page is HTML, and HTML reads the text of an SVG file by other rules than XML does: a comment or a
processing instruction of XML can end early and become a script. The text of a file therefore never
reaches a page. It is parsed as XML, and what the page gets is written anew from the parsed tree.
"""

import re
import xml.etree.ElementTree as ElementTree
from hashlib import sha256
from pathlib import Path

from softbeam.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
LINKS = ("{http://www.w3.org/1999/xlink}href", "href")
DRAWN = {"svg", "defs", "g", "path", "use", "clipPath", "rect", "image"}
PLACED = {"d", "x", "y", "width", "height", "viewBox", "transform"}
STYLED = {"fill", "fill-opacity", "opacity", "stroke", "stroke-dasharray", "stroke-dashoffset"}
STYLED |= {"stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width"}
VALUE = re.compile(r"[-+#.,()%\w\s]*", re.ASCII)  # no address, quotation, tag or further property
IMAGE = re.compile(r"data:image/png;base64,[\w+/=\s]*", re.ASCII)
NAMED = re.compile(r"#([\w.-]+)", re.ASCII)  # another part of the drawing
CLIPPED = re.compile(r"url\(#([\w.-]+)\)", re.ASCII)
RULE = "*{stroke-linejoin: round; stroke-linecap: butt}"  # matplotlib's only one
ROOT = {"fill": "currentColor", "stroke-linejoin": "round", "stroke-linecap": "butt"}
OF_THE_PAGE = {"#000000": "currentColor", "#ffffff": "Canvas"}  # in light and dark pages


def drawing(path: Path) -> str:
    """The drawing in an SVG file, for a page; empty if the file is missing.

    Raises UserError if the file has anything that figures of softbeam do not have.
    """
    if not path.is_file():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not an SVG figure: {error}") from None
    return rebuilt(text, str(path))


def rebuilt(text: str, name: str, label: str = "") -> str:
    """A drawing as SVG inside of HTML, with the page's colours in place of black and white.

    Args:
        text: an SVG document.
        name: what errors call it.
        label: what readers of screens are told.
    """
    try:
        prefix = "d" + sha256(text.encode()).hexdigest()[:10] + "-"  # names differ from the page's
        svg = part_of(ElementTree.fromstring(text), prefix)
        for attribute, value in ROOT.items():
            svg.set(attribute, value)
        if label:
            svg.set("role", "img")
            svg.set("aria-label", label)
        return ElementTree.tostring(svg, encoding="unicode")
    except Foreign as found:
        raise UserError(
            f"{name} holds {found}, which figures of softbeam never do: refused"
        ) from None
    except (ValueError, RecursionError, ElementTree.ParseError) as error:
        raise UserError(f"{name} is not an SVG figure: {error}") from None


class Foreign(Exception):
    """An element or attribute that matplotlib does not write."""


def part_of(element: ElementTree.Element, prefix: str) -> ElementTree.Element:
    """Write an element and those inside it anew, without texts, comments and metadata."""
    tag = element.tag.removeprefix(SVG)
    if tag not in DRAWN:
        raise Foreign(tag.rpartition("}")[2])
    part = ElementTree.Element(tag)
    for name, value in element.attrib.items():
        part.attrib |= attributes(tag, name, value, prefix)
    for child in element:
        if child.tag == f"{SVG}metadata" or (child.tag == f"{SVG}style" and child.text == RULE):
            continue
        part.append(part_of(child, prefix))
    return part


def attributes(tag: str, name: str, value: str, prefix: str) -> dict[str, str]:
    """An attribute as a page has it: none, one, or one for each property of a style."""
    linked, clipped = NAMED.fullmatch(value), CLIPPED.fullmatch(value)
    if name == "version":
        return {}
    if name == "style":
        pairs = [part.partition(":") for part in value.split(";") if part.strip()]
        styles = {key.strip(): given.strip() for key, _, given in pairs}
        if styles.keys() <= STYLED and all(map(VALUE.fullmatch, styles.values())):
            return {key: OF_THE_PAGE.get(given, given) for key, given in styles.items()}
    elif name == "id" and NAMED.fullmatch(f"#{value}"):
        return {"id": prefix + value}
    elif name == "clip-path" and clipped:
        return {name: f"url(#{prefix}{clipped[1]})"}
    elif name in LINKS and linked:
        return {"href": f"#{prefix}{linked[1]}"}
    elif name in LINKS and tag == "image" and IMAGE.fullmatch(value):
        return {"href": value}
    elif name in PLACED and VALUE.fullmatch(value):
        return {name: value}
    raise Foreign(f"{name.rpartition('}')[2]}={value[:40]}")
