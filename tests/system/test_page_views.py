"""The page in a browser: keyboard, widths, light and dark, tabs, states, and names from strangers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest_plugins = ["helpers.browser"]

FOCUSED_FILE = """() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id"""
FILLED = """() => [...document.querySelectorAll(".tile")].some((tile) => {
    const { top, bottom } = tile.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
})"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => (value <= 10.3 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (node) => {
    const colour = node ? rgba(getComputedStyle(node).backgroundColor) : [255, 255, 255, 255];
    return colour[3] > 200 ? colour : behind(node.parentElement);
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!text || !node.checkVisibility() || node.closest(".unseen, .skip, .tile, noscript")) continue;
    const { fill, color } = getComputedStyle(node);
    const lights = [light(rgba(node.namespaceURI.endsWith("svg") ? fill : color)), light(behind(node))];
    const ratio = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    if (ratio < 4.5) found.push(`${node.className} "${node.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return found;
}"""


def results(page: Any) -> Any:
    """The cards, once nothing is on its way."""
    page.locator("#results .card > a").first.wait_for()
    page.wait_for_function("""() => !document.getElementById("results").hasAttribute("aria-busy")""")
    return page.locator("#results .card")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_everything_can_be_done_by_keyboard(window, demo, screenshot):
    page = window(demo).open()
    page.locator(".tile").first.wait_for()
    press(page, "Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    while len(reached) < 12 and not (reached and reached[-1].startswith("Search from ")):
        press(page, "Tab")
        reached.append(page.evaluate(FOCUSED_FILE))
    assert reached[-1].startswith("Search from ")
    assert {"brand", "name-input", "shuffle", "Choose a picture to search with"} <= set(reached)
    first = reached[-1]
    press(page, "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp")
    assert page.evaluate(FOCUSED_FILE) == first
    press(page, "End")
    page.wait_for_function("() => document.activeElement.index === 1796")
    press(page, "Home")
    page.wait_for_function("() => document.activeElement.index === 0")
    press(page, "ArrowRight")
    screenshot(page, "10-keyboard-grid")
    chosen = page.evaluate(FOCUSED_FILE).removeprefix("Search from ")
    press(page, "Enter")
    cards = results(page)
    assert page.locator("#query h2").text_content() == chosen
    page.wait_for_function("""() => document.activeElement.closest(".card") !== null""")
    press(page, "ArrowRight", "ArrowRight")
    next_name = cards.nth(2).locator(".file-name").text_content()
    screenshot(page, "11-keyboard-results")
    press(page, "Enter")
    page.wait_for_function(
        """(name) => document.querySelector("#query h2").textContent === name""", arg=next_name
    )
    page.wait_for_function("""() => document.activeElement.closest(".card") !== null""")
    press(page, "Escape")
    page.locator("#view-start").wait_for()
    press(page, "/")
    assert page.evaluate(FOCUSED_FILE) == "name-input"
    page.keyboard.type("u/")  # letters are typed, not obeyed
    assert page.locator("#name-input").input_value() == "u/"


def test_the_letter_u_opens_the_file_chooser(window, demo, picture):
    page = window(demo).page
    page.on("filechooser", lambda chooser: None)  # from now on the browser tells of choosers
    page.goto(f"{demo.address}/?id=4")
    results(page)
    with page.expect_file_chooser() as chooser:
        press(page, "u")
    chooser.value.set_files({"name": "mine.png", "mimeType": "image/png", "buffer": picture(5, kind="PNG")})
    page.wait_for_function("""() => document.querySelector("#query h2")?.textContent === "mine.png" """)


def test_a_picture_opens_larger_and_arrow_keys_turn_over(window, shapes, screenshot):
    page = window(shapes).open("/?id=3")
    cards = results(page)
    page.get_by_role("button", name="Open picture", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    page.wait_for_function("""() => document.querySelector("#viewer img").src.endsWith("/picture")""")
    assert page.locator("#viewer p").inner_text().startswith("Query · 200 × 150 pixels · JPEG · ")
    screenshot(page, "12-viewer")
    press(page, "ArrowRight")
    assert page.locator("#viewer h2").text_content() == cards.first.locator(".file-name").text_content()
    press(page, "ArrowLeft", "ArrowLeft")
    assert page.locator("#viewer p").inner_text().startswith("Query")
    press(page, "Escape")
    assert dialog.count() == 0
    assert page.locator("#view-results").is_visible()
    cards.nth(2).locator("a").focus()
    press(page, "o")
    page.get_by_role("button", name="Search from it").click()
    page.wait_for_function("() => !location.search.includes('id=3&')")


@pytest.mark.parametrize(
    "address",
    ["/", "/?id=5", "/?tab=duplicates&radius=0", "/?tab=model", "/?tab=compare", "/?name=nothing-like-it"],
)
def test_nothing_is_wider_than_a_phone(window, demo, screenshot, address):
    page = window(demo, width=360, height=740, phone=True).show(address)
    assert page.evaluate(TOO_WIDE) == 0
    small = page.evaluate(
        """() => [...document.querySelectorAll("a, button, label.button, summary, .segments label, input")]
        .filter((node) => node.checkVisibility())
        .filter((node) => !node.matches(".unseen, .skip, .segments input, [type=checkbox]"))
        .map((node) => [node.outerHTML.slice(0, 80), node.getBoundingClientRect().height])
        .filter(([, height]) => height < 40)"""
    )
    assert small == []
    name = {"/": "start", "/?id=5": "results"}.get(address, address.partition("=")[2].partition("&")[0])
    screenshot(page, f"13-phone-{name}")


@pytest.mark.parametrize("address", ["/", "/?id=5", "/?tab=duplicates", "/?tab=model", "/?tab=compare"])
def test_colours_follow_the_system_and_can_be_read(window, demo, screenshot, address):
    """Text against what lies behind it: a contrast of 4.5, as WCAG AA asks for."""
    for dark in (False, True):
        page = window(demo, dark=dark).show(address)
        background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
        assert page.evaluate(CONTRASTS) == []
        if dark:
            screenshot(page, f"14-dark-{address.strip('/?').replace('=', '-') or 'start'}")


def test_the_model_tab_draws_training_and_bits(window, demo, screenshot):
    page = window(demo).open()
    page.get_by_role("link", name="Model").click()
    page.get_by_role("heading", name="BA, 32 bits, 1,797 pictures").wait_for()
    assert page.url.endswith("/?tab=model")
    assert page.title() == "Model – digits"
    headings = page.locator(".panel h2").all_inner_texts()
    assert {"Error by iteration", "Bits used", "Balance of bits", "Correlation of bits", "Buckets"} <= set(
        headings
    )
    assert page.locator(".panel .bar-shape[data-index]").count() >= 32
    chart = page.get_by_role("group", name="E_Q and E_BA by iteration")
    chart.focus()
    press(page, "ArrowRight")
    assert page.locator(".chart-at").first.inner_text() == "iteration 1"
    assert all(
        float(text.replace(",", "")) > 0
        for text in page.locator(".chart-legend output").all_inner_texts()[:2]
    )
    assert page.locator("canvas.heat").evaluate("(canvas) => [canvas.width, canvas.height]") == [32, 32]
    page.get_by_text("As a table").first.click()
    assert page.locator("details[open] tbody tr").count() >= 2
    screenshot(page, "15-model", whole=True)


def test_a_method_without_iterations_says_so(window, shapes, screenshot):
    page = window(shapes).open("/?tab=model")
    page.get_by_text("ITQ is computed in one go").wait_for()
    assert page.get_by_role("heading", name="Penalty μ").count() == 0
    screenshot(page, "16-model-without-history", whole=True)


def test_the_model_of_items_without_pictures_is_shown_too(window, docs, screenshot):
    page = window(docs).show("/?tab=model")
    page.get_by_role("heading", name="Facts").wait_for()
    assert page.get_by_text("ITQ, 8 bits, 60 items").count() == 1
    assert page.get_by_text("Features", exact=True).count() == 0
    assert "icture" not in page.locator("main").inner_text()
    screenshot(page, "32-model-of-texts", whole=True)


def test_the_compare_tab_draws_methods_or_says_how_to(window, demo, shapes, screenshot):
    page = window(demo).open("/?tab=compare")
    page.get_by_role("heading", name="Methods side by side").wait_for()
    assert page.locator(".chart .line").count() == len(set(page.locator(".chart-legend > span svg").all()))
    assert page.locator("tbody tr").count() == 12
    screenshot(page, "17-compare", whole=True)
    page = window(shapes).open("/?tab=compare")
    page.get_by_text("auxbit images compare shapes.auxbit").wait_for()
    screenshot(page, "18-no-comparison")


def test_file_names_are_found_as_one_types_and_none_is_said_so(window, demo, screenshot):
    page = window(demo).open()
    page.locator(".tile").first.wait_for()
    page.locator("#name-input").press_sequentially("digit-7-00")
    page.wait_for_function(
        """() => document.getElementById("grid-count").textContent.includes("digit-7-00")"""
    )
    links = page.locator(".tile a").all()
    assert links
    assert all("digit-7-00" in link.get_attribute("aria-label") for link in links)
    links[3].hover()
    shown = page.locator(".tile .file-name").all_text_contents()
    assert shown == [links[3].get_attribute("aria-label").removeprefix("Search from ")]
    assert "name=digit-7-00" in page.url
    screenshot(page, "19-file-names")
    page.locator("#name-input").fill("no such name")
    page.get_by_text("No file name contains “no such name”.").wait_for()
    screenshot(page, "20-no-file-name")
    page.get_by_role("button", name="Show all pictures").click()
    page.locator(".tile").nth(50).wait_for()
    first = page.locator(".tile a").first.get_attribute("aria-label")
    page.get_by_role("button", name="Shuffle").click()
    page.wait_for_function("""(name) => document.querySelector(".tile a").ariaLabel !== name""", arg=first)
    assert "seed=" in page.url


def test_names_from_strangers_are_text(window, shapes, screenshot):
    from helpers.browser import HOSTILE

    page = window(shapes).open("/?name=onerror")
    page.locator(".tile a").first.click()
    cards = results(page)
    assert page.locator("#query h2").text_content() == HOSTILE
    assert page.locator("img[src='x']").count() == 0
    assert page.title() == f"{HOSTILE} – shapes"
    screenshot(page, "21-odd-name")
    cards.first.locator("a").click()
    page.get_by_role("button", name="Open picture", exact=True).wait_for()


def test_a_server_that_is_gone_is_said_to_be(window, serve_again, screenshot):
    with serve_again() as server:
        page = window(server, expected=["ERR_CONNECTION_REFUSED"]).open("/?id=3")
        results(page)
        server.stop()
        page.get_by_label("Fast", exact=True).check(force=True)
        page.get_by_role("heading", name="The server does not answer").wait_for()
        assert page.get_by_text("Is auxbit serve still running?", exact=True).is_visible()
        assert page.get_by_role("button", name="Retry").is_visible()
        screenshot(page, "22-server-gone")


def test_a_token_is_asked_for_and_an_empty_collection_says_how_to_fill_it(window, shapes, screenshot):
    page = window(shapes, expected=["status of 401"]).page
    refused = {"status": 401, "json": {"error": {"code": "token_needed", "message": "A token is needed."}}}
    page.route("**/api/v1/stats", lambda route: route.fulfill(**refused))
    page.goto(shapes.address)
    page.get_by_role("heading", name="This server asks for a token").wait_for()
    screenshot(page, "23-token")
    page = window(shapes).page
    page.route("**/api/v1/items?*", lambda route: route.fulfill(json={"total": 0, "offset": 0, "items": []}))
    page.goto(shapes.address)
    page.get_by_text("auxbit images add shapes.auxbit FOLDER").wait_for()
    screenshot(page, "24-empty")


def test_skeletons_stand_where_pictures_will_be(window, demo, screenshot):
    page = window(demo).page
    held: list[Any] = []
    page.route("**/api/v1/search?*", lambda route: held.append(route))
    page.goto(f"{demo.address}/?id=3")
    page.locator("#results .skeleton").first.wait_for()
    screenshot(page, "25-loading", at_once=True)
    held[0].continue_()
    results(page)
    assert page.locator(".skeleton").count() == 0


def test_a_long_scroll_keeps_few_pictures_in_the_page(window, demo):
    page = window(demo).open()
    page.locator(".tile").first.wait_for()
    most = 0
    for step in range(1, 7):
        page.evaluate("(step) => scrollTo(0, step * 4800)", step)
        page.wait_for_function(FILLED)
        most = max(most, page.locator(".tile").count())
    assert most < 700
    height = page.evaluate("document.documentElement.scrollHeight")
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate("document.documentElement.scrollHeight") == height


def test_on_a_phone_the_first_result_is_above_the_fold(window, demo, shapes, docs, screenshot):
    for server, address in ((demo, "/?id=5"), (shapes, "/?id=3"), (docs, "/?id=3"), (docs, "/?text=sea")):
        page = window(server, width=390, height=664, phone=True).show(address)
        place = results(page).first.bounding_box()
        assert place["y"] + 100 < 664
        page.get_by_text("Exact · 20 results").click()
        assert page.get_by_label("Fast", exact=True).is_visible()
        screenshot(page, "26-phone-settings")


def test_duplicates_stand_side_by_side_and_can_be_listed(window, docs, demo, screenshot):
    page = window(docs).open("/?tab=duplicates")
    page.get_by_text("10 groups; 10 items could go if one of each is kept").wait_for()
    assert page.locator(".group").first.locator(".card").count() == 2
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the list of ids").click()
    assert download.value.path().read_text().split() == [str(id_) for id_ in range(50, 60)]
    screenshot(page, "27-duplicates")
    page = window(demo).open("/?tab=duplicates")
    page.get_by_role("heading", name="No duplicates").wait_for()
    page.get_by_label("Nearly the same").check(force=True)
    page.wait_for_function("() => location.search.includes('radius=2')")
    page.locator(".group .card").first.wait_for()
    assert page.get_by_role("link", name="Download the list of files").is_visible()
    screenshot(page, "28-near-duplicates")
    page.go_back()
    page.get_by_role("heading", name="No duplicates").wait_for()


def test_items_without_pictures_are_a_list_that_is_searched_by_words_id_and_vector(window, docs, screenshot):
    page = window(docs, expected=["status of 422"]).show("/")
    assert page.locator("#collection-facts").inner_text() == "60 items · 8 bits"
    assert page.locator("#list .card").count() == 50
    page.get_by_role("button", name="Show more").click()
    page.locator("#list .card").nth(59).wait_for()
    screenshot(page, "29-list")
    page.get_by_label("More like Text of 3: sea", exact=True).click()
    cards = results(page)
    assert "Text of 53" in cards.first.inner_text()  # the same vector
    assert page.locator("#query .row-title").inner_text() == "Text of 3: sea"
    screenshot(page, "30-list-results")
    page.locator("#where-control").fill("even = true")
    page.locator("#where-control").press("Enter")
    page.wait_for_function("() => location.search.includes('where=')")
    results(page)
    assert all("even true" in text for text in page.locator("#results .row-facts").all_inner_texts())
    page.locator("#where-control").fill("odd = true")
    page.locator("#where-control").press("Enter")
    page.locator("#results-state").get_by_text("no item has the field 'odd'").wait_for()
    page.get_by_role("button", name="Without conditions").click()
    results(page)
    page.go_back()
    page.get_by_role("button", name="All items").click()
    page.get_by_label("Search by words").fill("sea")
    page.get_by_role("button", name="Search", exact=True).first.click()
    results(page)
    assert page.locator("#query h2").inner_text() == "“sea”"
    page.locator("#back-link").click()
    page.get_by_text("Search by a vector").click()
    page.get_by_label("Vector", exact=True).fill("[1, 2")
    page.get_by_role("button", name="Search", exact=True).nth(1).click()
    page.get_by_text("The vector has 2 numbers; 8 are needed.").wait_for()
    page.get_by_label("Vector", exact=True).fill("[0, 1, 2, 3, 4, 5, 6, 7.5]")
    page.get_by_role("button", name="Search", exact=True).nth(1).click()
    results(page)
    assert page.locator("#query h2").inner_text() == "Your vector"
    page.reload()
    results(page)
    page.locator("#back-link").click()
    page.locator("#where-input").fill("even = false")
    page.get_by_role("button", name="Filter").click()
    page.locator("#list-count", has_text="30 of 60 items").wait_for()
    assert "where=" in page.url


def test_ids_beyond_the_numbers_of_javascript_are_those_of_their_items(window, tmp_path):
    from auxbit import LSH, Collection
    from helpers.browser import serving

    X, ids = np.random.default_rng(0).normal(size=(4, 8)), [2**60 + 1, 2**60, 2**60 - 1, 7]
    with Collection.create(tmp_path / "ids", LSH(8, random_state=0).fit(X), vectors="float32") as collection:
        collection.add(X, ids=ids, metadata=[{"title": f"Title {row}", "n": 2**53 + 1} for row in range(4)])
    with serving(str(tmp_path / "ids")) as server:
        page = window(server).show("/")
        page.get_by_label("More like Title 0", exact=True).click()
        results(page)
        assert page.locator("#query .row-title").inner_text() == "Title 0"
        assert f"id={ids[0]}" in page.url
        facts = page.locator("#query .row-facts").inner_text()
        assert facts.split() == ["id", str(ids[0]), "n", str(2**53 + 1)]


def test_pictures_are_searched_by_words_and_opened_from_there(window, tmp_path, screenshot):
    from helpers.browser import serving
    from helpers.picture_collections import create
    from helpers.picture_files import BLUE, RED, saved
    from helpers.picture_network import network, text_network, tokenizer

    towers = {"model": network([None, 3, 8, 8]), "text_model": text_network(), "tokenizer": tokenizer()}
    (tmp_path / "in").mkdir()
    for name, content in towers.items():
        (tmp_path / name).write_bytes(content)
    for name, colour in (("red", RED), ("blue", BLUE), ("dim", (90, 20, 20))):
        (tmp_path / "in" / f"{name}.png").write_bytes(saved(np.full((9, 9, 3), colour, dtype=np.uint8)))
    files = {name: tmp_path / name for name in towers}
    create(tmp_path / "in", tmp_path / "out", features=None, side=None, bits=2, **files)
    with serving(str(tmp_path / "out")) as server:
        page = window(server).show("/")
        page.get_by_label("Search by words").fill("red")
        page.get_by_label("Search by words").press("Enter")
        page.locator("#results .card > a").nth(2).wait_for()
        assert "red.png" in page.locator("#results .card").first.inner_text()
        assert page.locator("#query h2").inner_text() == "“red”"
        screenshot(page, "32-words")
        page.get_by_label("Open red.png").click()
        page.get_by_text("Result 1 of 3").wait_for()
        page.keyboard.press("ArrowLeft")  # to the left there are only words
        assert page.get_by_text("Result 1 of 3").is_visible()


def test_texts_from_strangers_are_text(window, docs):
    from helpers.browser import HOSTILE

    page = window(docs).show("/?id=7")
    assert page.locator("#query .row-title").inner_text() == HOSTILE
    assert page.locator("img[src='x']").count() == 0
    assert page.title() == f"{HOSTILE} – docs"


def test_a_list_can_be_read_in_the_dark_and_on_a_phone(window, docs, screenshot):
    for address in ("/", "/?id=3"):
        page = window(docs, dark=True).show(address)
        assert page.evaluate(CONTRASTS) == []
        page = window(docs, width=360, height=740, phone=True).show(address)
        assert page.evaluate(TOO_WIDE) == 0
    screenshot(page, "31-list-phone")
