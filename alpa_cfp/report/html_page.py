"""A plan as one HTML page that needs no other files.

Invariants: the page loads nothing from the network, and forbids the browser to; no text of the plan becomes markup or
script; everything can be read without the page's script, which only highlights, opens and shows tips.
"""

import base64
import hashlib
from importlib.resources import files

from alpa_cfp import quantities
from alpa_cfp.plan.plan import Plan
from alpa_cfp.report import html_tables, words
from alpa_cfp.report.html_drawing import Drawing
from alpa_cfp.report.html_model import model
from alpa_cfp.report.html_queues import queues
from alpa_cfp.report.html_timeline import timeline
from alpa_cfp.report.markup import Markup, element, join
from alpa_cfp.report.text import costs, explain, step
from alpa_cfp.report.totals import blocks_s, moves_s

# Shown before times of blocks are compared.
_BY_ITSELF = (
    "Times are of a block by itself. An alternative that is faster by itself can still lose: it may need moves between "
    "blocks, or memory, that cost more."
)


def html_page(plan: Plan) -> str:
    """The page of a plan."""
    title = f"Plan for {quantities.a_mesh(plan.mesh_shape)}"
    content = [_header(plan, title), element("main", _content(plan))]
    script, style = _packaged("report.js"), _packaged("report.css")
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    ]
    page = element("html", element("head", head), element("body", content, element("script", script)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _content(plan: Plan) -> Markup:
    if plan.account is None:
        return element("section", element("pre", explain(plan)))
    report = plan.account
    drawing = Drawing.of(plan, report)
    sums = (
        f"Blocks {quantities.time(blocks_s(report))}, moves between them {quantities.time(moves_s(report))}, "
        f"starting the program {quantities.time(report.overhead_s)}."
    )
    memory = f"Predicted for a device: {words.memory(plan.memory.state, plan.memory.saved, plan.memory.transient)}."
    return join(
        (
            _section("tried", html_tables.title_of_tried(drawing), html_tables.tried(drawing)),
            *([_section("queues", "One device's step, modelled", queues(report.timeline))] if report.timeline else []),
            _section(
                "time",
                "Predicted time, in program order",
                html_tables.legend(drawing),
                timeline(drawing),
                element("p", sums, class_="quiet"),
                html_tables.strip(drawing),
            ),
            _section(
                "model",
                "The model",
                element("p", f"Open a block to see what else it could have been. {_BY_ITSELF}", class_="quiet"),
                model(drawing),
            ),
            element(
                "div",
                _section("most-time", "Where the time goes", html_tables.time_table(drawing)),
                _section(
                    "memory",
                    "Where the memory goes",
                    element("p", memory, class_="quiet"),
                    html_tables.memory_strip(drawing),
                    html_tables.memory_table(drawing),
                ),
                class_="pair",
            ),
            _section("rules", "Ops without a sharding rule", html_tables.without_rule(drawing)),
            *(
                [_section("caveats", "What the planner had to do without", html_tables.caveats(drawing))]
                if report.caveats or report.gap_s != 0
                else []
            ),
        )
    )


def _header(plan: Plan, title: str) -> Markup:
    report = plan.account
    mesh = f"{words.axes_of_mesh(plan.mesh_shape, report.axis_names)}; " if report else ""
    kinds = f" of {quantities.plural(len(report.kinds), 'kind')}" if report else ""
    subtitle = f"{mesh}{quantities.plural(len(plan.strategies), 'block')}{kinds}"
    compiled = plan.needed_bytes is not None
    cards = (
        ("Step", quantities.time(plan.measured_s if plan.measured_s is not None else plan.predicted_s), step(plan)),
        (
            "Memory of a device",
            quantities.size(plan.needed_bytes if plan.needed_bytes is not None else plan.memory.total),
            f"{'by the compiled program; ' if compiled else ''}{quantities.size(plan.memory.total)} predicted",
        ),
        (
            "Costs",
            words.COSTS.get(plan.costs, plan.costs),
            costs(plan),
        ),
    )
    drawn = [
        element(
            "div",
            element("div", name, class_="quiet"),
            element("div", value, class_="value"),
            element("div", more, class_="quiet"),
            class_="card",
        )
        for name, value, more in cards
    ]
    said = [each for each in (words.recomputed(plan), words.in_parts(plan)) if each]
    return element(
        "header",
        element("h1", title),
        element("p", subtitle, class_="quiet"),
        element("div", drawn, class_="cards"),
        [element("p", f"{each[0].upper()}{each[1:]}.", class_="quiet") for each in said],
    )


def _section(name: str, title: str, *content: str) -> Markup:
    return element(
        "section", element("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title"
    )


def _packaged(name: str) -> Markup:
    return Markup(files("alpa_cfp.report").joinpath(name).read_text(encoding="utf-8"))


def _policy(script: str) -> str:
    """The content security policy: nothing from elsewhere, and no script but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
