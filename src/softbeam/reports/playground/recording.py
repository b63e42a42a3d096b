"""Animated pictures: a soft beam that sharpens, and chains that move over a text.

A picture is one SVG file without scripts, which moves by itself also where a page shows it as an
image. Where motion is not wanted (prefers-reduced-motion) it shows a moment; so does the address
FILE.svg#still, for browsers that do not tell images what is wanted. The same numbers give the same
bytes.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from softbeam.errors import UserError
from softbeam.reports.charts import color_of
from softbeam.reports.page import STYLE
from softbeam.reports.playground.beams import BeamViews
from softbeam.reports.playground.chains import ChainViews
from softbeam.reports.soft_beams import both_beams, layout
from softbeam.sampling.texts.sampler import generator, sampler
from softbeam.sampling.texts.steps import ChainStep, Outcome, Start, watched

ALPHAS = [10 ** (-1 + n / 10) for n in range(31)]  # 0.1 to 100
HOLD = 9  # frames for which the last one is shown
FRAME = 0.25  # seconds of a frame of a beam
STEP = 0.45  # seconds of a step of chains
STILL = 18  # the frame that is shown without motion: alpha 6.3
COLORS = "\n".join(line for line in STYLE.splitlines()[:2] if ":root" in line)
RULES = Path(__file__).with_name("moving.css").read_text(encoding="utf-8")


def document(width: float, height: float, title: str, about: str) -> Element:
    """An empty picture with a background, its colours those of reports."""
    root = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:g} {height:g}",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "role": "img",
        },
    )
    SubElement(root, "title").text = title
    SubElement(root, "desc").text = about
    SubElement(root, "style").text = f"{COLORS}\n{RULES}"
    add(root, "rect", "paper", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)
    return root


def two_groups(root: Element) -> tuple[Element, Element]:
    """A group that moves, and one that is shown in its place where motion is not wanted."""
    still = SubElement(root, "g", {"id": "still"})
    return SubElement(root, "g", {"class": "moving"}), still


def add(parent: Element, tag: str, kind: str = "", text: str = "", **places: Any) -> Element:
    """Add an element of a class, with its places as attributes."""
    attributes = {name.replace("_", "-"): written(value) for name, value in places.items()}
    made = SubElement(parent, tag, ({"class": kind} if kind else {}) | attributes)
    made.text = text or None
    return made


def written(value: object) -> str:
    """A number with at most two digits after the point; anything else as it is."""
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)


def saved(root: Element) -> str:
    """The text of a picture."""
    indent(root, "")
    return tostring(root, encoding="unicode") + "\n"


# A beam

Value = Callable[[int], float]  # frame -> value


class Moving(NamedTuple):
    """Draws the same elements twice: moving through frames, and as one frame alone."""

    frames: int
    seconds: float
    groups: tuple[Element, Element]

    def draw(
        self, tag: str, kind: str = "", text: str = "", *, moves: dict[str, Value], **places: Any
    ) -> None:
        """Add an element, of which some attributes change from frame to frame."""
        for group, still in zip(self.groups, (False, True), strict=True):
            now = {name: float(value(STILL)) for name, value in moves.items()}
            made = add(group, tag, kind, text, **places, **now)
            if still:
                continue
            for name, value in moves.items():
                values = [written(float(value(frame))) for frame in range(self.frames)]
                if len({*values}) == 1:
                    made.set(name.replace("_", "-"), values[0])
                    continue
                values += values[-1:] * HOLD
                changes = {"attributeName": name.replace("_", "-"), "values": ";".join(values)}
                changes |= {"dur": f"{self.seconds:g}s", "repeatCount": "indefinite"}
                SubElement(made, "animate", changes)


def moving_beam(views: BeamViews) -> str:
    """Draw the soft beam of the first sentence as alpha grows from 0.1 to 100.

    Raises UserError if there is no sentence.
    """
    number = 0 if views.source else views.sentence or next(iter(views.numbers), 0)
    example = views.example(number, views.source)
    every = [both_beams(views.run, number, example, k=views.k, alpha=alpha) for alpha in ALPHAS]
    drawn = [layout(beams.soft) for beams in every]
    first, top = drawn[0], 84
    width, height = max(first["width"], 560), first["height"] + top + 8
    source = " ".join(example.source)
    about = f"Alpha grows from 0.1 to 100 and the soft beam of {source!r} becomes the hard beam."
    root = document(width, height, "A soft beam sharpens as alpha grows", about)
    groups = two_groups(root)
    moving = Moving(len(every), (len(every) + HOLD) * FRAME, groups)
    draw_slider(root, moving, width, [beams.share for beams in every])
    for group in groups:
        group.set("transform", f"translate(0 {top})")
        for head in first["heads"]:
            add(group, "text", "read middle", head["word"], x=head["x"], y=14)
        add(group, "circle", "dot", cx=40, cy=first["top"], r=5)
    draw_edges(moving, drawn)
    for n in range(len(first["nodes"])):
        draw_node(moving, [frame["nodes"][n] for frame in drawn])
    return saved(root)


def draw_slider(root: Element, moving: Moving, width: float, shares: Sequence[float]) -> None:
    """Draw alpha on a line, and a bar of the weight on the hard beam's cells."""
    left, right, y = 92.0, width / 2 - 20, -60
    add(root, "text", "", "alpha", x=40, y=28)
    add(root, "line", "track", x1=left, y1=24, x2=right, y2=24)
    for place, label in zip(range(4), ("0.1", "1", "10", "100"), strict=True):
        x = left + place * (right - left) / 3
        add(root, "text", "quiet small middle", label, x=x, y=46)
    along = (right - left) / (moving.frames - 1)
    moving.draw("circle", "dot", cy=y, r=7, moves={"cx": lambda frame: left + frame * along})
    start, most = width / 2 + 30, width / 2 - 70
    add(root, "text", "quiet small", "weight on the hard beam's cells", x=start, y=46)
    add(root, "line", "track", x1=start, y1=24, x2=start + most, y2=24)
    bar = {"width": lambda frame: shares[frame] * most}
    moving.draw("rect", "dot", x=start, y=y - 4, height=8, rx=4, moves=bar)


class Weights(dict[int, float]):
    """Weights by frame; 0 in frames without one."""

    def of(self, frame: int) -> float:
        return self.get(frame, 0.0)


def draw_edges(moving: Moving, drawn: Sequence[dict[str, Any]]) -> None:
    """Draw every line between elements that has any weight in some frame."""
    weights: dict[tuple[float, ...], Weights] = {}
    for frame, lattice in enumerate(drawn):
        for edge in lattice["edges"]:
            place = tuple(edge[name] for name in ("x1", "y1", "x2", "y2"))
            weights.setdefault(place, Weights())[frame] = edge["weight"] * 0.8
    for (x1, y1, x2, y2), by_frame in sorted(weights.items()):
        moving.draw(
            "line", "edge", x1=x1, y1=y1, x2=x2, y2=y2, moves={"stroke_opacity": by_frame.of}
        )


def draw_node(moving: Moving, frames: Sequence[dict[str, Any]]) -> None:
    """Draw an element of the beam: its circle, and the words that are on it in some frame."""
    x, y = frames[0]["x"], frames[0]["y"]
    size = {"r": lambda frame: 3 + 8 * frames[frame]["weight"]}
    moving.draw("circle", "dot", cx=x, cy=y, moves=size)
    for word, weight, below, kind in (
        ("word", "weight", 26, "middle"),
        ("second", "less", 38, "quiet small middle"),
    ):
        for text in sorted({frame[word] for frame in frames} - {""}):
            seen = Weights(
                (n, 0.3 + 0.7 * frame[weight])
                for n, frame in enumerate(frames)
                if frame[word] == text
            )
            moving.draw("text", kind, text, x=x, y=y + below, moves={"opacity": seen.of})


# Chains


class Enough(Exception):
    """As many steps as the picture shows."""


def moving_chains(views: ChainViews, *, steps: int) -> str:
    """Draw the first steps of the chains over the text; they are those of `softbeam.sample`.

    Raises UserError if there is no text.
    """
    if not views.text.strip():
        raise UserError("--record: give a --text; [MASK] is a gap of one token")
    starts: list[Start] = []
    found: list[ChainStep] = []

    def keep(step: ChainStep) -> None:
        found.append(step)
        if len(found) == steps:
            raise Enough

    chosen = sampler(views.mlm, [views.text], views.config)
    rng = generator(views.config, 0)
    try:
        for _ in watched(views.mlm, chosen, rng, on_start=starts.append, on_move=keep):
            pass
    except Enough:
        pass
    return drawn_chains(starts[0], found)


class Clock(NamedTuple):
    """The time of a picture that is repeated: `steps` of them, and a rest."""

    steps: int
    seconds: float

    def shown(self, element: Element, spans: Iterable[tuple[int, int]]) -> None:
        """Show an element only from step a until step b, for each of some (a, b) in order.

        A span that ends with the last step goes on until the picture begins again.
        """
        times, values = [0.0], ["0"]
        for begin, end in spans:
            for at, value in ((begin, "1"), (end, "0")):
                share = round(at * STEP / self.seconds, 4) if at < self.steps + 1 else 1.0
                if share == times[-1]:
                    values[-1] = value
                elif share < 1:
                    times.append(share)
                    values.append(value)
        if values == ["1"]:
            return
        element.set("opacity", "0")
        SubElement(
            element,
            "animate",
            {
                "attributeName": "opacity",
                "calcMode": "discrete",
                "values": ";".join(values),
                "keyTimes": ";".join(f"{time:g}" for time in times),
                "dur": f"{self.seconds:g}s",
                "repeatCount": "indefinite",
            },
        )


def drawn_chains(start: Start, steps: Sequence[ChainStep]) -> str:
    """The picture of chains: their cells row by row, their energies, and a curve of these."""
    places, line_height, lines = cell_places(start)
    row = lines * line_height + 14
    width, top, chart = 840.0, 20.0, 110.0
    height = top + row * len(start.tokens) + chart + 44
    about = f"{len(start.tokens)} chains, {len(steps)} steps: cells are masked one after another, "
    root = document(
        width, height, "Chains move over a text", about + "proposals accepted or rejected."
    )
    moving, still = two_groups(root)
    clock = Clock(len(steps), round((len(steps) + 6) * STEP, 2))
    for c in range(len(start.tokens)):
        add(root, "circle", cx=24, cy=top + row * c + 9, r=5, fill=color_of(c))
        draw_chain(moving, still, start, steps, c, top + row * c, places, clock)
    box = (60.0, top + row * len(start.tokens) + 12, width - 100, chart)
    draw_energies(root, moving, still, start, steps, box, clock)
    return saved(root)


def cell_places(start: Start) -> tuple[list[tuple[float, float, float]], float, int]:
    """Place the cells of a text in lines: x, y and width of each; the line height; the lines."""
    x, line, places = 44.0, 0, list[tuple[float, float, float]]()
    for cell in range(len(start.tokens[0])):
        longest = max(len(tokens[cell]) for tokens in start.tokens)
        wide = 8.6 * longest + 6.4
        if x + wide > 740:
            x, line = 44.0, line + 1
        places.append((x, line * 36.0, wide))
        x += wide
    return places, 36.0, line + 1


def draw_chain(
    moving: Element,
    still: Element,
    start: Start,
    steps: Sequence[ChainStep],
    c: int,
    y: float,
    places: Sequence[tuple[float, float, float]],
    clock: Clock,
) -> None:
    """Draw one chain: what stands in each cell when, what was tried, and the energy."""
    free, end = {*start.free}, len(steps) + 1
    history = {cell: [(0, token)] for cell, token in enumerate(start.tokens[c])}
    energies = [(0, start.energy[c])]
    for t, step in enumerate(steps, 1):
        cells, proposed, outcome, _, energy = step.moves[c]
        for cell, token in zip(cells, proposed, strict=True):
            x, down, wide = places[cell]
            before = history[cell][-1][1]
            draw_try(moving, (x, y + down, wide), before, token, outcome, clock, t)
            if outcome == "accepted":
                history[cell].append((t, token))
        if energy != energies[-1][1]:
            energies.append((t, energy))
    for cell, changes in history.items():
        x, down, wide = places[cell]
        at = {"x": x + wide / 2, "y": y + down + 14}
        kind = "mono middle" if cell in free else "mono middle quiet"
        add(still, "text", kind, changes[-1][1], **at)
        for (begin, token), (stop, _) in zip(changes, [*changes[1:], (end, "")], strict=True):
            clock.shown(add(moving, "text", kind, token, **at), [(begin, stop)])
    values = [*energies[1:], (end, 0.0)]
    for (begin, energy), (stop, _) in zip(energies, values, strict=True):
        shown = add(moving, "text", "end", f"{energy:.1f}", x=816, y=y + 14)
        clock.shown(shown, [(begin, stop)])
    add(still, "text", "end", f"{energies[-1][1]:.1f}", x=816, y=y + 14)


def draw_try(
    moving: Element,
    place: tuple[float, float, float],
    before: str,
    token: str,
    outcome: Outcome,
    clock: Clock,
    t: int,
) -> None:
    """Draw a proposal for as long as its step lasts: a coloured cell, and the token that lost."""
    x, y, wide = place
    box = add(moving, "rect", outcome, x=x, y=y, width=wide, height=32, rx=3)
    clock.shown(box, [(t, t + 1)])
    if outcome in ("accepted", "rejected"):
        kind, lost = ("left", before) if outcome == "accepted" else ("refused", token)
        below = add(moving, "text", f"mono tried middle {kind}", lost, x=x + wide / 2, y=y + 27)
        if outcome == "rejected":
            below.set("text-decoration", "line-through")
        clock.shown(below, [(t, t + 1)])


def draw_energies(
    root: Element,
    moving: Element,
    still: Element,
    start: Start,
    steps: Sequence[ChainStep],
    box: tuple[float, float, float, float],
    clock: Clock,
) -> None:
    """Draw the energy of each chain by the step, up to the step that is shown."""
    left, top, width, height = box
    curves = [
        [energy, *(step.moves[c].energy for step in steps)] for c, energy in enumerate(start.energy)
    ]
    every = [energy for curve in curves for energy in curve]
    low, high = min(every), max(every)
    scale = (height - 10) / ((high - low) or 1.0)
    for energy in (high, low):
        y = top + (high - energy) * scale
        add(root, "text", "quiet small end", f"{energy:.0f}", x=left - 8, y=y + 4)
    note = "energy by the step; lower is likelier"
    add(root, "text", "quiet small", note, x=left, y=top + height + 14)
    for n, outcome in enumerate(("accepted", "rejected", "same token")):
        x = left + width - 250 + 90 * n
        kind = outcome.split()[0]
        add(root, "rect", kind, x=x, y=top + height + 4, width=12, height=12, rx=3)
        add(root, "text", "quiet small", outcome, x=x + 17, y=top + height + 14)
    reveal = SubElement(SubElement(root, "clipPath", {"id": "until"}), "rect")
    for name, value in zip(("x", "y", "height"), (left - 4, top - 8, height + 16), strict=True):
        reveal.set(name, written(value))
    share = f"{len(steps) * STEP / clock.seconds:.4f}"
    ends = {"values": f"4;{written(width + 4)};{written(width + 4)}", "keyTimes": f"0;{share};1"}
    ends |= {"attributeName": "width", "dur": f"{clock.seconds:g}s", "repeatCount": "indefinite"}
    SubElement(reveal, "animate", ends)
    until = SubElement(moving, "g", {"clip-path": "url(#until)"})
    for c, curve in enumerate(curves):
        points = " ".join(
            f"{written(left + t * width / len(steps))},{written(top + (high - energy) * scale)}"
            for t, energy in enumerate(curve)
        )
        for group in (until, still):
            add(group, "polyline", "curve", points=points, stroke=color_of(c))
