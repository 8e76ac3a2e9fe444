"""The page in a browser: looking, and searching by click, file, clipboard, drop, controls and address."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest_plugins = ["helpers.browser"]

FILE_EVENT = """([kind, name, type, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""

# as a hand that does not let go yet
HOLD = """() => {
  const data = new DataTransfer();
  data.items.add(new File(["x"], "held.jpg", { type: "image/jpeg" }));
  window.holding = setInterval(() => document.body.dispatchEvent(
    new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true })), 50);
}"""
IN_THE_MIDDLE = """() => [...document.querySelectorAll(".tile a")].filter((link) => {
  const { top } = link.getBoundingClientRect();
  return top > 200 && top < 600;
}).map((link) => link.ariaLabel)"""


def give(page: Any, kind: str, name: str, content: bytes, media_type: str = "image/jpeg") -> None:
    """Paste or drop a file."""
    page.evaluate(FILE_EVENT, [kind, name, media_type, base64.b64encode(content).decode()])


def asked(page: Any) -> dict[str, str]:
    """The query of the address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def results(page: Any, n: int = 20) -> Any:
    """The cards, once there are n of them and nothing is on its way."""
    page.wait_for_function(
        """(n) => { const node = document.getElementById("results");
        return !node.hasAttribute("aria-busy") && node.querySelectorAll(".card > a").length === n; }""",
        arg=n,
    )
    return page.locator("#results .card")


def settled(page: Any) -> None:
    """Wait until no results are on their way."""
    page.wait_for_function("""() => !document.getElementById("results").hasAttribute("aria-busy")""")


def test_the_first_look_is_a_grid_of_pictures_and_a_box_for_ones_own(window, demo, screenshot):
    page = window(demo).open()
    page.locator(".tile img").first.wait_for()
    assert page.locator("#collection-name").inner_text() == "digits"
    assert page.locator("#collection-facts").inner_text() == "1,797 pictures · 32 bits"
    assert page.title() == "digits – auxbit"
    assert page.get_by_label("Choose a picture to search with").get_attribute("type") == "file"
    assert (
        page.locator(".tile img").first.evaluate("(image) => getComputedStyle(image).imageRendering")
        == "pixelated"
    )
    screenshot(page, "01-first-look")


def test_a_click_searches_and_a_click_on_a_result_searches_on(window, demo, screenshot):
    page = window(demo).open()
    tile = page.locator(".tile a").nth(3)
    name = tile.get_attribute("aria-label").removeprefix("Search from ")
    tile.click()
    cards = results(page)
    assert page.locator("#query h2").text_content() == name
    assert page.title() == f"{name} – digits"
    assert cards.first.locator(".card-pictures img").count() == 2  # the picture and its reconstruction
    assert page.locator("#live").text_content().startswith(f"20 results for {name}. The nearest is ")
    screenshot(page, "02-results")
    first = asked(page)["id"]
    second = cards.nth(4).locator(".file-name").text_content()
    cards.nth(4).locator("a").click()
    page.wait_for_function(
        """(name) => document.querySelector("#query h2").textContent === name""", arg=second
    )
    assert asked(page)["id"] != first
    results(page)


def test_bits_that_differ_are_marked_by_their_shape(window, demo):
    page = window(demo).open("/?id=17&mode=hamming&k=30")
    last = results(page, 30).last
    words = last.locator(".distance strong").inner_text()
    differing = int(words.removesuffix(" of 32 bits"))
    drawn = last.locator("svg.bits").evaluate(
        """(node) => Object.fromEntries([...node.querySelectorAll("path")]
        .map((path) => [path.getAttribute("class"), path.getAttribute("d").split("z").length - 1]))"""
    )
    assert differing > 0
    assert drawn.get("differs-on", 0) + drawn.get("differs-off", 0) == differing
    assert sum(drawn.values()) == 32
    assert last.locator("svg.bits").get_attribute("aria-label") == f"Code: {differing} of 32 bits differ"


def test_a_file_that_is_chosen_is_searched_with(window, shapes, picture, screenshot):
    page = window(shapes).open()
    page.set_input_files(
        "#file-input", {"name": "mine.jpg", "mimeType": "image/jpeg", "buffer": picture(100)}
    )
    results(page)
    assert len(asked(page)["upload"]) == 64
    assert page.locator("#query h2").text_content() == "mine.jpg"
    assert page.locator("#query .facts").inner_text() == "Your picture · 200 × 150 pixels"
    screenshot(page, "03-upload")


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_a_picture_that_is_pasted_or_dropped_is_searched_with(window, shapes, picture, screenshot, kind):
    page = window(shapes).open()
    page.locator(".tile").first.wait_for()
    if kind == "drop":
        page.evaluate(HOLD)
        page.get_by_text("Drop the picture to search with it").wait_for()
        screenshot(page, "04-held-over-the-page")
        page.evaluate("clearInterval(window.holding)")
    give(page, kind, f"{kind}.jpg", picture(101))
    results(page)
    assert page.locator("#query h2").text_content() == f"{kind}.jpg"
    assert page.locator("#drop-veil").is_hidden()
    screenshot(page, f"05-{kind}")


def test_an_upload_that_the_server_has_forgotten_is_sent_again_from_the_browser(window, shapes, picture):
    page = window(shapes, expected=["status of 404"]).open()
    page.set_input_files(
        "#file-input", {"name": "mine.jpg", "mimeType": "image/jpeg", "buffer": picture(102)}
    )
    results(page)
    upload = asked(page)["upload"]
    forgetful = {"status": 404, "json": {"error": {"code": "upload_gone", "message": "It is gone."}}}
    page.route("**/api/v1/search?*upload=*", lambda route: route.fulfill(**forgetful))
    page.reload()
    results(page)
    assert page.locator("#query h2").text_content() == "mine.jpg"
    page.goto(f"{shapes.address}/?upload={upload[::-1]}")
    page.get_by_text("This picture is no longer here").wait_for()


def test_a_corrupt_upload_is_refused_in_words_and_the_page_continues(window, shapes, picture, screenshot):
    page = window(shapes, expected=["status of 4"]).open()
    broken = picture(103)[:900]
    page.set_input_files("#file-input", {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": broken})
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.locator("p").inner_text().startswith("broken.jpg: ")
    assert urlsplit(page.url).query == ""
    screenshot(page, "06-corrupt-upload")
    page.set_input_files("#file-input", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"})
    page.get_by_text("notes.txt is not a picture (text/plain)").wait_for()
    page.locator(".tile a").first.click()
    results(page)
    assert page.get_by_role("alert").count() == 0


def test_the_mode_acts_at_once_and_stands_in_the_address(window, shapes, screenshot):
    page = window(shapes).open("/?id=3")
    results(page)
    for label, mode in (("Fast", "hamming"), ("Exact", "reranked"), ("Better", "asymmetric")):
        page.get_by_label(label, exact=True).check(force=True)
        page.wait_for_function("(mode) => location.search.includes(`mode=${mode}`)", arg=mode)
        cards = results(page)
        distances = [text.split()[0] for text in cards.locator(".distance strong").all_inner_texts()]
        assert [float(each) for each in distances] == sorted(float(each) for each in distances)
        assert all("." not in each for each in distances) == (mode == "hamming")
        assert page.locator("#mode-words").inner_text() != ""
        screenshot(page, f"07-mode-{mode}")


def test_k_and_radius_act_at_once_and_one_step_back_undoes_a_slide(window, demo, screenshot):
    page = window(demo).open("/?id=3&mode=hamming")
    results(page)
    page.locator("#k-number").fill("7")
    results(page, 7)
    assert asked(page)["k"] == "7"
    page.locator("#k-slider").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    results(page, 10)
    assert asked(page)["k"] == "10"
    page.get_by_label("Radius", exact=True).check()
    settled(page)
    page.locator("#radius-number").fill("0")
    page.get_by_text("Nothing within this radius").wait_for()
    assert asked(page)["radius"] == "0"
    screenshot(page, "08-nothing-within-radius")
    page.get_by_role("button", name="Radius 2").click()
    page.wait_for_function("""() => location.search.includes("radius=2")""")
    settled(page)
    bits = page.locator("#results .distance strong").all_inner_texts()
    assert all(int(text.split()[0]) <= 2 for text in bits)
    page.get_by_label("Radius", exact=True).uncheck()
    page.wait_for_function("""() => !location.search.includes("radius")""")
    results(page, 10)


def test_a_slide_is_one_entry_of_the_history(window, demo):
    page = window(demo).open("/?id=3&k=5")
    results(page, 5)
    page.locator("#k-slider").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    results(page, 9)
    page.go_back()
    results(page, 5)
    assert asked(page) == {"id": "3", "k": "5"}


def test_an_address_brings_back_query_and_controls(window, demo):
    page = window(demo).open("/?id=5&mode=hamming&k=12&radius=9")
    settled(page)
    assert page.get_by_label("Fast", exact=True).is_checked()
    assert page.locator("#k-number").input_value() == "12"
    assert page.locator("#radius-number").input_value() == "9"
    assert page.get_by_label("Radius", exact=True).is_checked()
    hamming = [int(text.split()[0]) for text in page.locator(".distance strong").all_inner_texts()]
    assert len(hamming) <= 12
    assert max(hamming) <= 9


def test_an_id_that_is_not_there_is_an_error_in_words(window, demo, screenshot):
    page = window(demo, expected=["status of 404"]).open("/?id=999999")
    page.get_by_role("alert").wait_for()
    assert "999999" in page.get_by_role("alert").inner_text().replace(",", "")
    assert page.get_by_role("button", name="Retry").count() == 0
    screenshot(page, "09-no-such-picture")
    page.get_by_role("button", name="All pictures").click()
    page.locator(".tile").first.wait_for()


def test_back_and_forward_restore_results_and_the_place_in_the_grid(window, demo):
    page = window(demo).open()
    page.locator(".tile").first.wait_for()
    page.evaluate("scrollTo(0, 2600)")
    page.wait_for_function(f"() => ({IN_THE_MIDDLE})().length > 0")
    before = page.evaluate(IN_THE_MIDDLE)
    page.get_by_label(before[2], exact=True).click()
    first = results(page).first.locator(".file-name").text_content()
    query = page.url
    assert page.evaluate("scrollY") == 0
    page.go_back()
    page.locator("#view-start").wait_for()
    assert page.evaluate("scrollY") == 2600
    assert page.evaluate(IN_THE_MIDDLE) == before
    page.go_forward()
    page.locator("#view-results").wait_for()
    assert results(page).first.locator(".file-name").text_content() == first
    assert page.url == query
    page.go_back()
    page.reload()
    page.locator(".tile").first.wait_for()
    page.wait_for_function("() => scrollY === 2600")


def test_an_answer_that_comes_too_late_is_dropped(window, demo):
    page = window(demo).open("/?id=3&k=4")
    results(page, 4)
    held = []
    page.route("**/api/v1/search?*k=50*", lambda route: held.append(route))
    page.locator("#k-number").fill("50")
    page.wait_for_function("""() => location.search.includes("k=50")""")
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    assert page.locator("#results .card").count() == 4  # what was there stays while one waits
    page.locator("#k-number").fill("6")
    results(page, 6)
    for route in held:
        route.abort()
    page.wait_for_timeout(100)
    assert results(page, 6).count() == 6
