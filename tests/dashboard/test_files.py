"""The dashboard's files as they are served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dashboard.routes import read_assets

STATIC = Path(__file__).parents[2] / "gateway" / "dashboard" / "static"
STRICT = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
}


def test_the_page_is_served_under_a_strict_policy_without_a_key(seeded: Any) -> None:
    page = seeded.get("/dashboard/")

    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert set(policy.split("; ")) >= STRICT
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"


def test_its_address_without_a_slash_leads_to_it_wherever_it_is_mounted(seeded: Any) -> None:
    moved = seeded.get("/dashboard?x=/")

    assert (moved.status_code, moved.headers["location"]) == (307, "dashboard/")


def test_every_file_that_a_file_names_is_served_and_not_sent_twice(seeded: Any) -> None:
    named = {
        name
        for path in STATIC.iterdir()
        for name in re.findall(
            r'(?:from |import\(|href=|src=)"(?:\./)?([\w-]+\.\w+)"', path.read_text()
        )
    }

    assert named | {"index.html"} == set(read_assets())
    for name in named:
        first = seeded.get(f"/dashboard/{name}")
        assert first.status_code == 200, name
        again = httpx.get(first.url, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), name


@pytest.mark.parametrize(
    "name", ["nowhere.js", "routes.py", "..%2froutes.py", "%2e%2e%2fconfig.py"]
)
def test_nothing_else_is(seeded: Any, name: str) -> None:
    assert seeded.get(f"/dashboard/{name}").status_code == 404


def test_it_can_be_left_out(start: Any) -> None:
    live = start(dashboard="off")

    assert live.get("/dashboard/").status_code == 404
    assert live.get("/healthz").status_code == 200


def test_no_text_becomes_markup_and_nothing_is_inline_or_stored() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"
        r"|localStorage|sessionStorage|indexedDB|document\.cookie|https?://(?!www\.w3\.org)"
        r"|<style|style=|<script(?! type=\"module\" src=)"
    )
    for path in STATIC.iterdir():
        assert not re.findall(forbidden, path.read_text()), path.name
