"""A report is used in a real browser with the keyboard alone, and its bars say what they are."""

from collections.abc import Iterator

import pytest

from alpa_cfp.report.html_page import html_page
from unit.alpa_cfp.report.devtools import BROWSER, NO_BROWSER, Page, opened
from unit.alpa_cfp.report.reports import gpt, modelled, plan_of

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)

BARS = "[...document.querySelectorAll('#timeline a')]"
FOCUSED = "document.activeElement"
TIP = "document.getElementById('tip')"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("report") / "plan.html"
    path.write_text(html_page(plan_of(gpt())), encoding="utf-8")
    with opened(path) as page:
        yield page


@pytest.fixture
def page(shown: Page) -> Page:
    """The page as it is when it has just been opened."""
    shown.says("for (const each of document.querySelectorAll('details')) each.open = false")
    shown.says("document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0)")
    shown.says(f"{BARS}.forEach((bar, number) => {{ bar.tabIndex = number ? -1 : 0 }})")
    shown.point_at(0, 0)
    return shown


def walked(page: Page, times: int = 100) -> list[str]:
    """What has the focus, tab by tab, until it leaves the page."""
    names: list[str] = []
    for _ in range(times):
        page.press("Tab")
        name = page.says(
            f"{FOCUSED} === document.body ? '' : {FOCUSED}.tagName + ' ' + ({FOCUSED}.closest('details')?.id ?? '')"
        )
        if not name:
            break
        names.append(name)
    return names


def focus_bar(page: Page) -> None:
    """Go with the tab key to the bars."""
    while page.says(f"{BARS}.indexOf({FOCUSED})") < 0:
        page.press("Tab")


def test_the_tab_key_reaches_every_block_once_and_in_order(page: Page) -> None:
    blocks = page.says("[...document.querySelectorAll('details.block')].map((block) => block.id)")
    reached = [name.removeprefix("SUMMARY ") for name in walked(page) if name.startswith("SUMMARY block")]
    assert blocks
    assert reached == blocks


def test_the_tab_key_passes_the_bars_in_one_step(page: Page) -> None:
    assert page.says(f"{BARS}.length") > 5
    assert sum(name.startswith("a ") for name in walked(page)) == 1


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_key_opens_a_block_and_closes_it_again(page: Page, key: str) -> None:
    while not page.says(f"{FOCUSED}.matches('.block > summary')"):
        page.press("Tab")
    is_shown = f"{FOCUSED}.parentElement.querySelector('table').checkVisibility()"
    assert not page.says(is_shown)
    page.press(key)
    assert page.says(is_shown)
    page.press(key)
    assert not page.says(is_shown)


def test_a_bar_that_has_the_focus_shows_what_it_is(page: Page) -> None:
    assert page.says(f"{TIP}.hidden")
    focus_bar(page)
    assert not page.says(f"{TIP}.hidden")
    assert page.says(f"{TIP}.textContent").startswith("embeddings/word\n0.520 ms measured\nA: ")
    # In the window, and read out as well.
    inside = "((box) => box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)"
    assert page.says(f"{inside}({TIP}.getBoundingClientRect())")
    assert page.says(f"{FOCUSED}.getAttribute('aria-label')").startswith("embeddings/word, 0.520 ms measured, A: ")


def test_arrows_go_from_bar_to_bar_and_escape_hides_what_is_shown(page: Page) -> None:
    focus_bar(page)
    last = page.says(f"{BARS}.length") - 1
    for key, number in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        page.press(key)
        assert page.says(f"{BARS}.indexOf({FOCUSED})") == number
        assert page.says(f"{TIP}.textContent === {FOCUSED}.dataset.tip && !{TIP}.hidden")
    page.press("ArrowLeft")
    assert page.says(f"{BARS}.indexOf({FOCUSED})") == 0
    page.press("Escape")
    assert page.says(f"{TIP}.hidden")


def test_enter_on_a_bar_opens_its_block_and_goes_there(page: Page) -> None:
    focus_bar(page)
    page.press("ArrowRight")
    target = page.says(f"{FOCUSED}.getAttribute('href').slice(1)")
    page.press("Enter")
    # Links are followed a little later.
    block = f"document.getElementById('{target}')"
    page.says(f"new Promise((done) => {block}.open ? done() : {block}.addEventListener('toggle', done))")
    assert page.says(f"{FOCUSED} === document.querySelector('#{target} > summary')")


def test_a_bar_that_is_pointed_at_shows_what_it_is_until_the_pointer_leaves(page: Page) -> None:
    page.says(f"{BARS}[2].scrollIntoView({{ block: 'center' }})")
    x, y = page.says(f"((box) => [box.x + box.width / 2, box.y + 9])({BARS}[2].getBoundingClientRect())")
    page.point_at(x, y)
    assert page.says(f"!{TIP}.hidden && {TIP}.textContent === {BARS}[2].dataset.tip")
    page.point_at(0, 0)
    assert page.says(f"{TIP}.hidden")


def test_buttons_of_the_legend_are_pressed_by_keys(page: Page) -> None:
    while not page.says(f"{FOCUSED}.matches('.legend button')"):
        page.press("Tab")
    page.press("Enter")
    assert page.says(f"{FOCUSED}.getAttribute('aria-pressed')") == "true"
    assert page.says("document.querySelectorAll('#timeline a.dim').length") > 0
    page.press(" ")
    assert page.says(f"{FOCUSED}.getAttribute('aria-pressed')") == "false"
    assert page.says("document.querySelectorAll('.dim').length") == 0


LANES = "[...document.querySelectorAll('#lanes .lane')]"
DRAWN = "document.getElementById('lanes')"


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("queues") / "plan.html"
    path.write_text(html_page(modelled()), encoding="utf-8")
    with opened(path) as page:
        yield page


def test_the_tab_key_reaches_each_lane_once_and_arrows_go_along_it(queues: Page) -> None:
    reached = list[int]()
    for _ in range(100):
        queues.press("Tab")
        lane = queues.says(f"{LANES}.indexOf({FOCUSED}.closest('.lane'))")
        reached += [lane] if lane >= 0 else []
        if lane == 1:
            break
    assert reached == [0, 1]
    queues.press("ArrowRight")
    assert queues.says(f"{TIP}.textContent").startswith("all-gather, 0.0300 ms modelled\n0.0300 ms beside computation")
    assert queues.says(f"{FOCUSED}.getAttribute('aria-label')").startswith("all-gather, 0.0300 ms modelled, 0.0300 ms")
    queues.press("Escape")
    assert queues.says(f"{TIP}.hidden")


def test_buttons_make_the_queues_wider_with_a_finer_scale_and_whole_again(queues: Page) -> None:
    def button(number: int) -> str:
        return f"document.querySelectorAll('#queues .tools button')[{number}]"

    whole = f"{DRAWN}.getBoundingClientRect().width"
    lines = f"(getComputedStyle({DRAWN}.querySelector('.tick.fine')).display !== 'none')"
    before = queues.says(whole)
    assert queues.says(f"{button(1)}.disabled && !{lines}")
    for _ in range(2):
        queues.says(f"{button(0)}.click()")
    assert queues.says(whole) == pytest.approx(4 * before)
    assert queues.says(lines)
    queues.says(f"{button(2)}.click()")
    assert queues.says(whole) == pytest.approx(before)
    assert not queues.says("document.documentElement.dataset.error ?? ''")
