"""The dashboard in a real browser: each page's main path, what goes wrong, and how it looks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import ADMIN, ANN, NUMBER

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

LAST = f"dec_{NUMBER - 1:06d}"
PAGES = (
    "overview",
    "decisions",
    f"decisions/{LAST}",
    "policy",
    "evidence",
    "evidence/CELL",
    "playground",
)
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def opened(browser: Any, seeded: Any) -> Iterator[Open]:
    """Opens the dashboard in a window of its own, with a key; a script that fails fails the test."""
    contexts = []
    faults: list[str] = []

    def open_page(key: str | None = ADMIN, *, width: int = 1280) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        contexts.append(context)
        page: Page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: _note(faults, line))
        page.goto(f"{seeded.url}/dashboard")
        if key is not None:
            give_key(page, key)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _note(faults: list[str], line: Any) -> None:
    """A refused request is reported by the browser too; all else that it says is a fault."""
    if line.type in ("error", "warning") and "Failed to load resource" not in line.text:
        faults.append(line.text)


def give_key(page: Page, key: str) -> None:
    page.get_by_role("button", name="API key").click()
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use this key").click()


def go(page: Page, place: str) -> None:
    page.evaluate("place => { location.hash = '#/' + place; }", place)


@pytest.fixture(scope="module")
def page(opened: Open) -> Page:
    """One window for the tests that only look."""
    return opened()


@pytest.fixture(scope="module")
def demoted(seeded: Any) -> Any:
    """The cell whose answers left the target's law."""
    cells = seeded.get("/v1/evidence", authorization=f"Bearer {ADMIN}").json()["data"]
    return next(cell for cell in cells if cell["state"] == "demoted")


@pytest.fixture(scope="module")
def busiest(seeded: Any) -> Any:
    """The cell with the most to show."""
    cells = seeded.get("/v1/evidence", authorization=f"Bearer {ADMIN}").json()["data"]
    return max(cells, key=lambda cell: cell["measured_tokens"] * (cell["cell"]["domain"] == "code"))


def test_the_overview_counts_the_day(page: Page) -> None:
    go(page, "overview")

    tiles = page.locator(".tiles")
    expect(tiles).to_contain_text(f"Requests{NUMBER}")
    expect(tiles).to_contain_text("Attestation failures0")
    expect(page.get_by_role("img", name="Requests in the last 24 hours")).to_be_visible()
    drawn = page.locator(".wide-chart rect.fill-speculative").count()
    assert drawn > 10
    expect(page.get_by_role("row", name="hybrid")).to_be_visible()
    page.get_by_role("link", name="code").first.click()
    expect(page).to_have_url(f"{page.url.split('#')[0]}#/decisions?domain=code&since=24h")


def test_a_failed_attestation_in_a_group_that_is_left_out_is_still_counted(opened: Open) -> None:
    page = opened(None)
    expect(page.get_by_text("This gateway asks for a key")).to_be_visible()

    def cut_off(route: Any) -> None:
        answer = route.fetch()
        body = answer.json()
        if body["by"] == ["executed"]:
            body["groups"][-1]["attestation_failed"] = 1
        else:
            body |= {"groups": body["groups"][:1], "truncated": True}
        route.fulfill(response=answer, json=body)

    page.route("**/v1/decisions/stats?*", cut_off)
    give_key(page, ADMIN)
    tiles = page.locator(".tiles")
    expect(tiles).to_contain_text("Attestation failures1")
    expect(tiles).to_contain_text(f"Requests{NUMBER}")
    expect(page.get_by_text("There are more groups than the server counts")).to_be_visible()


def test_decisions_are_paged_by_the_server_and_filtered_in_the_address(page: Page) -> None:
    go(page, "decisions")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    first = rows.first.inner_text()

    page.get_by_role("button", name="Older").click()
    expect(page.locator(".pager")).to_contain_text("51 to 100")
    assert rows.first.inner_text() != first
    page.get_by_role("button", name="Newer").click()
    expect(page.locator(".pager")).to_contain_text("1 to 50")

    page.get_by_label("Decided mode").select_option("hybrid")
    expect(page).to_have_url(f"{page.url.split('#')[0]}#/decisions?mode=hybrid")
    expect(rows.first).to_contain_text("support")
    page.get_by_label("Rule").fill("no-such-rule")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("Nothing meets these filters")).to_be_visible()


def test_a_decision_shows_why_and_what_ran_and_hostile_text_stays_text(page: Page) -> None:
    go(page, f"decisions/{LAST}")

    expect(page.get_by_role("heading", name=LAST)).to_be_visible()
    expect(page.locator(".tree")).to_contain_text("domain medical")
    expect(page.locator(".gauge .bar").first).to_be_attached()
    expect(page.locator("section", has_text="Chain").last.get_by_text("verified")).to_have_count(2)
    expect(page.get_by_text("<img src=x onerror=").first).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "Decisions · Draftgate"
    expect(page.get_by_text(f"draftgate decisions replay {LAST}", exact=True)).to_be_visible()
    page.get_by_role("button", name="Copy the command").click()
    expect(page.get_by_role("button", name=re.compile("^(Copied|Selected)"))).to_be_visible()
    # A seed is larger than what a float holds.
    expect(page.get_by_text(str(2**63 - 1), exact=True)).to_be_visible()


def test_evidence_draws_the_e_value_and_an_alarm_is_cleared_with_a_reason(
    opened: Open, demoted: Any, seeded: Any
) -> None:
    page = opened()
    go(page, "evidence")
    expect(page.locator("tbody tr").first).to_contain_text("demoted")
    page.get_by_role("link", name="structured extraction").first.click()

    chart = page.get_by_role("img", name="e-value over")
    expect(chart).to_be_visible()
    assert len((chart.locator("polyline").get_attribute("points") or "").split()) > 3
    page.get_by_role("button", name="Clear the alarm").click()
    assert page.get_by_label("Why it may be").evaluate("field => field.validity.valueMissing")
    page.get_by_label("Why it may be").fill("The draft was rebuilt. <b>really</b>")
    page.get_by_role("button", name="Clear the alarm").click()
    expect(page.get_by_text("The draft was rebuilt. <b>really</b>")).to_be_visible()
    expect(page.locator(".tiles")).to_contain_text("sound")
    found = seeded.get(f"/v1/evidence/{demoted['id']}", authorization=f"Bearer {ADMIN}").json()
    assert [event["kind"] for event in found["events"]] == ["clearing", "alarm"]


def test_a_candidate_is_checked_compared_tried_applied_and_taken_back(opened: Open) -> None:
    page = opened()
    go(page, "policy")
    expect(page.locator(".yaml li.rule").first).to_be_visible()
    editor = page.get_by_label("The candidate's text")
    before = editor.input_value()

    editor.fill(before + "  - {id: broken, bann: [hybrid]}\n")
    expect(page.locator(".problems")).to_contain_text("bann")
    page.locator(".problems button").first.click()
    assert editor.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)")

    editor.fill(
        before.replace("mode: hybrid, standard_first: 10", "mode: hybrid, standard_first: 20")
    )
    expect(page.get_by_text("Valid, and its tests")).to_be_visible()
    page.get_by_role("button", name="What would change").click()
    expect(page.locator(".changes")).to_contain_text("standard_first 10 → 20")
    expect(page.locator(".diff .plus")).to_contain_text("standard_first: 20")
    page.get_by_label("Prompt; nothing").fill("I want a refund.")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".try")).to_contain_text("It would be decided hybrid by support")

    page.get_by_role("button", name="Apply it").click()
    page.get_by_role("button", name="Yes, bring it into force").click()
    expect(page.locator(".notice[role=status]")).to_contain_text("is in force")
    page.get_by_role("button", name="Roll back to").first.click()
    page.get_by_role("button", name="Yes, roll back").click()
    expect(page.locator(".notice[role=status]")).to_contain_text("is in force again")
    assert page.get_by_label("The candidate's text").input_value() == before


def test_a_candidate_outlives_another_ones_change(opened: Open) -> None:
    page = opened()
    go(page, "policy")
    editor = page.get_by_label("The candidate's text")
    text = editor.input_value() + "# mine\n"
    editor.fill(text)
    expect(page.get_by_text("Valid, and its tests")).to_be_visible()
    refusal = {"error": {"message": "Another policy is in force by now."}}
    page.route(
        "**/v1/policy",
        lambda route: (
            route.fulfill(status=412, json=refusal)
            if route.request.method == "PUT"
            else route.fallback()
        ),
    )
    page.get_by_role("button", name="Apply it").click()
    page.get_by_role("button", name="Yes, bring it into force").click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody was faster")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".diff .plus")).to_contain_text("# mine")
    assert editor.input_value() == text


def test_a_check_of_an_older_text_does_not_free_the_apply_button(opened: Open) -> None:
    page = opened()
    held: list[Any] = []
    page.route("**/v1/policy/validate", lambda route: held.append(route))
    go(page, "policy")
    editor = page.get_by_label("The candidate's text")
    with page.expect_request("**/v1/policy/validate"):
        editor.fill(editor.input_value() + "# valid\n")
    editor.press_sequentially("x")
    with page.expect_response("**/v1/policy/validate"):
        held[0].continue_()
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.get_by_role("button", name="Apply it").is_disabled()


def test_the_editor_offers_what_the_schema_allows(page: Page) -> None:
    go(page, "policy")
    editor = page.get_by_label("The candidate's text")
    editor.fill("version: 1\nname: x\nrules:\n  - id: a\n    decide: {mode: spec")
    editor.press("Control+Space")
    offered = page.locator(".completions li")
    expect(offered).to_have_text(["speculative"])
    editor.press("Enter")
    assert editor.input_value().endswith("mode: speculative")
    editor.fill("version: 1\nname: x\nrules:\n  - id: a\n    w")
    editor.press("Control+Space")
    expect(offered.first).to_contain_text("when:")
    editor.press("Escape")
    expect(page.locator(".completions")).to_be_hidden()


def test_the_playground_runs_three_modes_and_says_what_the_policy_made_of_them(page: Page) -> None:
    go(page, "playground")
    page.get_by_label("Prompt").fill("write a function")
    page.get_by_role("button", name="Run in all three modes").click()

    for mode in ("standard", "speculative", "hybrid"):
        lane = page.get_by_label(f"{mode} mode", exact=True)
        expect(lane).to_contain_text("The answer is short.")
    expect(page.get_by_label("hybrid mode", exact=True)).to_contain_text("policy: speculative")
    expect(page.locator(".notice.good")).to_contain_text("Equal: standard, speculative")


def test_a_token_has_the_colour_of_its_origin(opened: Open) -> None:
    page = opened()
    events = [
        _event([("def ", "a"), ("f", "a"), ("(", "r")], [[3, 4, 2]]),
        _event([("x", "b")], [[1, 0, 0]]),
        _event([(")", "a"), (":", "b")], [[2, 1, 1]]),
    ]
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**_stream(events)))
    go(page, "playground")
    page.get_by_label("Prompt").fill("anything")
    page.get_by_role("button", name="Run in all three modes").click()

    tokens = page.get_by_label("standard mode", exact=True).locator(".token")
    expect(tokens).to_have_text(["def ", "f", "(", "x", ")", ":"])
    origins = [token.get_attribute("title") for token in tokens.all()]
    assert origins == ["accepted", "accepted", "recovered", "standard", "accepted", "bonus"]


def _event(tokens: list[tuple[str, str]], steps: list[list[int]]) -> str:
    content = [{"token": token, "logprob": -0.1} for token, _ in tokens]
    choice = {
        "index": 0,
        "delta": {"content": "".join(token for token, _ in tokens)},
        "logprobs": {"content": content},
        "finish_reason": None,
    }
    return "data: " + json.dumps({"choices": [choice], "draftgate": {"steps": steps}}) + "\n\n"


def _stream(events: list[str]) -> Any:
    return {
        "status": 200,
        "headers": {"content-type": "text/event-stream", "x-draftgate-mode": "standard"},
        "body": "".join(events) + "data: [DONE]\n\n",
    }


def test_without_a_key_and_with_a_small_one_it_says_which_one_would_do(opened: Open) -> None:
    page = opened(None)
    expect(page.get_by_text("This gateway asks for a key")).to_be_visible()
    page.get_by_role("button", name="Enter a key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")

    give_key(page, ANN)
    expect(page.get_by_text("No request in the last 24 hours")).to_be_visible()
    for place in ("policy", "evidence"):
        go(page, place)
        expect(page.get_by_text("This key may not see it")).to_be_visible()
        expect(page.locator(".state")).to_contain_text("policy:write")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
        0,
        0,
        "",
    ]
    page.reload()
    go(page, "overview")
    expect(page.get_by_text("This gateway asks for a key")).to_be_visible()


def test_a_gateway_that_does_not_answer_is_said_and_asked_again(opened: Open) -> None:
    page = opened()
    expect(page.locator(".tiles")).to_be_visible()
    page.route("**/v1/decisions?*", lambda route: route.abort())
    go(page, "decisions")
    expect(page.get_by_role("alert")).to_contain_text("The gateway does not answer")
    page.unroute("**/v1/decisions?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("tbody tr")).to_have_count(50)


def test_the_first_key_leads_past_the_navigation(opened: Open) -> None:
    page = opened(None)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert "#main" not in page.url


def test_a_broken_address_or_script_does_not_leave_the_page_loading(opened: Open) -> None:
    page = opened()
    go(page, "%")
    expect(page.locator(".tiles")).to_be_visible()
    page.route("**/dashboard/evidence.js", lambda route: route.abort())
    go(page, "evidence")
    expect(page.get_by_role("alert")).to_contain_text("did not load")
    expect(page.locator(".loading")).to_have_count(0)


def test_a_refresh_leaves_the_focus_where_it_was(opened: Open) -> None:
    page = opened(None)
    page.clock.install()
    give_key(page, ADMIN)
    link = page.locator(".multiples").get_by_role("link", name="code")
    link.focus()
    link.evaluate("element => { element.dataset.old = 'yes'; }")
    page.clock.run_for(16_000)
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(link).to_be_focused()


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_is_accessible_and_has_its_picture_taken(
    opened: Open, busiest: Any, shots: Path, width: int
) -> None:
    page = opened(width=width)
    serious = []
    for place in PAGES:
        go(page, place.replace("CELL", busiest["id"]))
        expect(page.locator(".loading")).to_have_count(0)
        page.wait_for_load_state("networkidle")
        wide = page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
        assert not wide, f"{place} is wider than {width}"
        name = place.split("/")[0] + ("-one" if "/" in place else "")
        # Both widths and both themes are looked at, though each with each only by who wants pictures.
        checked = "dark" if width == 390 else "light"
        for scheme in ("light", "dark") if "DRAFTGATE_SCREENSHOTS" in os.environ else (checked,):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
            if scheme == checked:
                serious += _faults(page, place)
    assert serious == []


def _faults(page: Page, place: str) -> list[tuple[str, str, str]]:
    """What axe-core finds serious: where, which of its rules, and the first element."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        (place, fault["id"], fault["nodes"][0]["html"])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
