"""The report is one page that needs nothing else, names every block, and takes no text for markup."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from alpa_cfp.plan.plan_report import Caveat, PlanReport
from alpa_cfp.plan.signature import Recomputed, Signature
from alpa_cfp.report.html_page import html_page
from unit.alpa_cfp.report.reports import gpt, hostile, moe, plan_of, queues, unmeasured

ACCOUNTS = {
    "gpt": gpt(2),
    "deep": gpt(24),
    "moe": moe(),
    "unmeasured": unmeasured(),
    "none": None,
    "queues": replace(gpt(), timeline=queues()),
}
# Elements and attributes that make a browser ask for something.
LOADING = {"link", "img", "iframe", "object", "embed", "video", "audio", "source", "image", "use", "base", "form"}
ADDRESSES = {"src", "srcset", "action", "data", "xlink:href", "background", "poster", "formaction"}
EMPTY = {"meta", "br", "wbr"}


class Page(HTMLParser):
    """What is in a page; `AssertionError` where elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def values(self, attribute: str) -> list[str]:
        """The values of an attribute, wherever it is."""
        return [value or "" for _, own in self.tags if (value := own.get(attribute)) is not None]

    def text(self) -> str:
        """All that is shown."""
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))


@pytest.fixture(params=ACCOUNTS.values(), ids=ACCOUNTS)
def report(request: pytest.FixtureRequest) -> PlanReport | None:
    return request.param


def test_a_page_refers_to_nothing_outside_itself(report: PlanReport | None) -> None:
    page = Page(html_page(plan_of(report)))
    assert not LOADING.intersection(tag for tag, _ in page.tags)
    assert not ADDRESSES.intersection(name for _, own in page.tags for name in own)
    assert all(value.startswith("#") for value in page.values("href"))
    styles = [text for tag, text in page.texts if tag == "style"] + page.values("style")
    assert not [text for text in styles if "url(" in text or "@import" in text]


def test_a_page_forbids_the_browser_to_load_anything(report: PlanReport | None) -> None:
    (policy,) = [own["content"] or "" for tag, own in Page(html_page(plan_of(report))).tags if "http-equiv" in own]
    assert policy.startswith("default-src 'none'; ")


@pytest.mark.parametrize("layers", [2, 24])
def test_every_block_has_a_bar_and_a_name(layers: int) -> None:
    own = gpt(layers)
    page = Page(html_page(plan_of(own)))
    assert page.values("data-block") == [str(i) for i in range(len(own.blocks))]
    shown = page.text()
    assert [block.name for block in own.blocks if block.name not in shown] == []


def test_equal_layers_are_one_box_with_a_count() -> None:
    page = Page(html_page(plan_of(gpt(24))))
    boxes = [own for tag, own in page.tags if tag == "details" and own.get("class") == "block"]
    assert len(boxes) == 6
    assert "× 24" in [text for _, text in page.texts]


def test_every_move_has_a_bar() -> None:
    own = gpt(2)
    assert len(Page(html_page(plan_of(own))).values("data-move")) == len(own.moves)


def test_links_lead_to_what_is_there(report: PlanReport | None) -> None:
    page = Page(html_page(plan_of(report)))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in page.values("href")} <= set(ids)
    assert set(page.values("aria-labelledby")) <= set(ids)


def test_a_block_has_all_its_alternatives_with_time_and_memory() -> None:
    text = " ".join(Page(html_page(plan_of(gpt(2)))).text().split())
    assert "weights split by row on axis 1; samples split on axis 0 0.795 ms 12% slower 23.4 MB" in text
    assert "cannot be run: XlaRuntimeError: RESOURCE_EXHAUSTED: out of memory while allocating <buffer>" in text


def test_names_are_not_taken_for_markup() -> None:
    text = html_page(plan_of(hostile()))
    assert "<script>alert" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "</script><script>alert(1)</script>&\"'/lm_head" in page.text()


def test_a_plan_without_account_has_a_page_that_says_so() -> None:
    assert "has no report" in Page(html_page(plan_of(None))).text()


def test_equal_plans_have_equal_pages() -> None:
    assert html_page(plan_of(moe())) == html_page(plan_of(moe()))


def test_what_the_planner_had_to_do_without_is_on_the_page() -> None:
    caveats = (Caveat("the <link> is a guess", may_cost=True), Caveat("ZeRO-3 was not compared", may_cost=False))
    page = html_page(plan_of(replace(gpt(), caveats=caveats)))
    assert "<strong>the &lt;link&gt; is a guess</strong>" in page
    assert "<li>ZeRO-3 was not compared</li>" in page


def test_what_the_backward_pass_computes_again_is_below_the_cards() -> None:
    signature = Signature(("x", "y"), ("Auto", "Auto"), (), (), (), recomputed=(Recomputed(0, (1,), False, 4_000_000),))
    plan = plan_of(gpt(2))
    texts = [text for _, text in Page(html_page(replace(plan, signature=signature))).texts]
    assert any(text.startswith("The backward pass computes block 1 (") for text in texts)
    assert not any("computes" in text and "again" in text for _, text in Page(html_page(plan)).texts)
