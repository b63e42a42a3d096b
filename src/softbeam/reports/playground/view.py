"""The playground's page, and what it is sent to draw."""

from pathlib import Path
from typing import Any

from softbeam import __version__
from softbeam.reports.charts import COLORS
from softbeam.reports.page import STYLE, VIEWS, as_script, policy, template
from softbeam.reports.playground.beams import WIDEST, BeamViews
from softbeam.reports.playground.chains import MOST_CHAINS, ChainViews
from softbeam.reports.soft_beams import Beams, layout

HERE = Path(__file__).parent
PAGE_STYLE = STYLE + (HERE / "play.css").read_text(encoding="utf-8")
PAGE_SCRIPT = VIEWS + (HERE / "play.js").read_text(encoding="utf-8")


def page(beams: BeamViews | None, chains: ChainViews | None) -> tuple[str, str]:
    """The page, and its Content-Security-Policy: it may ask this server, and nobody else."""
    rule = policy(PAGE_STYLE, PAGE_SCRIPT) + "; connect-src 'self'; frame-ancestors 'none'"
    text = template("playground/play.html.jinja").render(
        version=__version__,
        beams=beams,
        chains=chains,
        widest=WIDEST,
        most_chains=MOST_CHAINS,
        style=PAGE_STYLE,
        script=PAGE_SCRIPT,
        data=as_script({"colors": COLORS}),
    )
    return text, rule


def beams_shown(found: Beams) -> dict[str, Any]:
    """Both beams as drawings, and their numbers."""
    lattice = vars(template("views.html.jinja").module)["lattice"]
    return {
        "soft": str(lattice(layout(found.soft), "soft beam")),
        "hard": str(lattice(layout(found.hard), "hard beam")),
        "share": found.share,
        "gold": found.soft.gold,
        "soft_paths": [path._asdict() for path in found.soft_paths],
        "hard_paths": [path._asdict() for path in found.hard_paths],
    }
