"""A drawing from a file reaches a page only as what matplotlib draws with."""

import re
from pathlib import Path

import pytest

from softbeam.errors import UserError
from softbeam.reports.charts import Curve, figure_of, image, lines_svg
from softbeam.reports.drawings import drawing, rebuilt

START = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
SCRIPT = "<script>document.title += ' ran'</script>"
DROPPED = {  # the script is a comment or an instruction for XML, and a script for HTML
    "an instruction": f"{START}><?x >{SCRIPT}?></svg>",
    "a comment": f"{START}><!-->{SCRIPT}--></svg>",
    "a comment in front": f"<!-- <svg>{SCRIPT}</svg> --><svg/>",
    "an instruction in front": f"<?x ><svg>{SCRIPT}</svg>?><svg/>",
    "text": f"{START}>{SCRIPT.replace('<', '&lt;')}<g/></svg>",
    "text without marks": f"{START}><![CDATA[{SCRIPT}]]></svg>",
    "metadata": f"{START}><metadata>{SCRIPT}</metadata></svg>",
}
REFUSED = {
    f"{START}>{SCRIPT}</svg>": "script",
    f"{START}><defs><style>@import url(http://x/y.css);</style></defs></svg>": "style",
    f"{START} onload='alert(1)'/>": "onload=alert",
    f"{START}><a href='javascript:alert(1)'><rect/></a></svg>": "a,",
    f"{START}><use href='http://x/y.svg#a'/></svg>": "href=http",
    f"{START}><use xlink:href='data:image/svg+xml,x'/></svg>": "href=data",
    f"{START}><image href='data:image/svg+xml;base64,x'/></svg>": "href=data",
    f"{START}><image href='javascript:alert(1)'/></svg>": "href=javascript",
    f"{START}><rect style='fill: url(http://x/y)'/></svg>": "style=fill",
    f"{START}><rect style='background: red'/></svg>": "style=background",
    f"{START}><rect style='fill'/></svg>".replace("'fill'", "'fill:a\\000022'"): "style=fill",
    f"{START}><rect clip-path='url(http://x/y)'/></svg>": "clip-path=url",
    f"{START}><rect id='a b'/></svg>": "id=a b",
    f"{START}><foreignObject><body xmlns='http://www.w3.org/1999/xhtml'/></foreignObject></svg>": (
        "foreignObject"
    ),
    f"{START}><animate attributeName='href'/></svg>": "animate",
    f"{START}><g xmlns='http://www.w3.org/1999/xhtml'/></svg>": "g",
    "<html><body/></html>": "html",
}


@pytest.mark.parametrize("text", DROPPED.values(), ids=DROPPED)
def test_what_is_no_part_of_a_drawing_is_left_out(text):
    found = rebuilt(text, "x.svg")
    assert re.fullmatch(r"<svg [^<>]*(/>|><g /></svg>)", found), found
    assert "script" not in found and "title" not in found


@pytest.mark.parametrize(("text", "held"), REFUSED.items(), ids=REFUSED.values())
def test_what_matplotlib_does_not_write_is_refused(text, held):
    with pytest.raises(UserError, match=re.escape(f"x.svg holds {held}")):
        rebuilt(text, "x.svg")


BOMB = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
BROKEN = {
    "nothing": "",
    "half": "<svg",
    "entities": f'<!DOCTYPE svg [<!ENTITY a0 "aaaaaaaaaa">{BOMB}]><svg>&a11;</svg>',
    "depth": "<svg>" + "<g>" * 100_000 + "</g>" * 100_000 + "</svg>",
    "half of a character": "<svg>\ud800</svg>",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_drawing_is_refused(text):
    with pytest.raises(UserError, match="^x.svg is not an SVG figure: "):
        rebuilt(text, "x.svg")


def test_a_chart_keeps_its_parts_and_takes_the_colours_of_the_page(tmp_path):
    chart, (axes,) = figure_of(1, 4, 3)
    axes.plot([1, 2], [1, 2], label="a -- <b>", linestyle="--")
    axes.imshow([[1, 2], [3, 4]])
    axes.legend()
    (tmp_path / "x.svg").write_bytes(image(chart, "svg"))
    before, after = (tmp_path / "x.svg").read_text(), drawing(tmp_path / "x.svg")
    for part in ("<path ", "<use ", "<clipPath ", "<image "):
        assert after.count(part) == before.count(part) > 0, part
    assert "#000000" not in after and "#ffffff" not in after and "#1f77b4" in after
    assert "currentColor" in after and "Canvas" in after and "style" not in after
    names = set(re.findall(r' id="([^"]*)"', after))
    assert {name[:11] for name in names} == {next(iter(names))[:11]}, "one prefix"
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', after)) <= names, "all links lead inside"
    assert drawing(tmp_path / "missing.svg") == ""


def test_a_label_is_escaped():
    svg = lines_svg("update", '"><script>', [Curve("<b>", [([1, 2], [3.0, 4.0])], "#123456")])
    assert 'aria-label="&quot;&gt;&lt;script&gt;"' in svg and "<script" not in svg


def test_the_published_figures_can_be_shown():
    for path in Path(__file__).parents[2].glob("results/**/*.svg"):
        assert drawing(path).startswith("<svg ")
