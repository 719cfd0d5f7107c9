"""The shipped policy on real text, with the classifiers that come with it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.cli.signals import SignalReader
from gateway.config import GatewayConfig
from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.types import Caller, ChatRequest, Decision, Message, Mode

ROOT = Path(__file__).parents[2]
DEFAULT = (ROOT / "policies" / "default.yaml").read_text(encoding="utf-8")
PROMPTS = [
    json.loads(line)
    for line in (ROOT / "tests" / "data" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
]
DOSE = "Write a function computing an ibuprofen dose for a child"

Judge = Callable[..., Decision]


def parse(text: str) -> Policy:
    return parse_policy(text, "default", verifiers=("coupled",), draft_sources=("suffix",))


@pytest.fixture(scope="module")
def judge() -> Judge:
    read = SignalReader(GatewayConfig().classifiers)

    def of(text: str, policy: Policy | None = None) -> Decision:
        request = ChatRequest("any", (Message("user", text),))
        now = datetime(2026, 1, 5, 12, tzinfo=UTC)
        signals = read(request)
        return decide(
            policy or parse(DEFAULT), signals, request, Caller(), prompt_tokens=9, now=now
        )

    return of


@pytest.mark.parametrize(
    "text",
    [
        DOSE,
        "Напиши функцию, которая вычисляет дозу ибупрофена для ребёнка по весу",
        "子供の体重からイブプロフェンの投与量を計算する関数を書いてください",
        "写一个根据体重计算儿童布洛芬剂量的函数",
        "Schreibe eine Funktion, die die Ibuprofen-Dosis für ein Kind berechnet",
        "Escribe una función que calcule la dosis de ibuprofeno para un niño",
        "اكتب دالة تحسب جرعة الإيبوبروفين للطفل حسب الوزن",
        "아이의 체중으로 이부프로펜 용량을 계산하는 함수를 작성해 주세요",
        "כתוב פונקציה שמחשבת מינון איבופרופן לילד",
        "Viết một hàm Python tính liều ibuprofen cho trẻ em theo cân nặng",
        "Γράψε μια συνάρτηση που υπολογίζει τη δόση ιβουπροφαίνης για ένα παιδί",
    ],
)
def test_a_dose_in_code_is_banned_in_every_language(judge: Judge, text: str) -> None:
    decision = judge(text)

    assert decision.mode is Mode.STANDARD
    assert set(decision.bans) == {"speculative", "hybrid"}


@pytest.mark.parametrize(
    ("text", "mode", "rule"),
    [
        (
            "Write a Python function that parses a CSV file and a test for it.",
            "speculative",
            "code",
        ),
        ("Write a Python function that reverses a list.", "speculative", "code"),
        ("python quicksort", "speculative", "code"),
        ("fizzbuzz in js", "speculative", "code"),
        ("def f(x):\n    return x", "speculative", "code"),
        ("std::vector<int> v; v.push_back(3);", "speculative", "code"),
        ("My order arrived damaged and I want a refund, can you help me?", "hybrid", "support"),
        ("What is the maximum daily dose of ibuprofen for an adult?", "standard", "medical"),
    ],
)
def test_english_and_bare_code_are_decided_as_before(
    judge: Judge, text: str, mode: str, rule: str
) -> None:
    decision = judge(text)

    assert (decision.mode, decision.rule) == (mode, rule)
    assert all(
        trace.matched is False for trace in decision.trace if trace.rule == "other-languages"
    )


def test_of_the_sample_prompts_only_those_in_other_languages_are_banned_as_such(
    judge: Judge,
) -> None:
    banned = {
        prompt["id"]
        for prompt in PROMPTS
        for trace in judge(prompt["text"]).trace
        if trace.rule == "other-languages" and trace.matched
    }

    assert banned == {
        "medical-short-2",
        "legal-short-2",
        "finance-short-2",
        "math-short-2",
        "factual-short-2",
        "extraction-short-2",
        "creative-short-2",
        "chat-short-2",
    }


def test_the_rule_that_the_documents_offer_bans_encoded_text_and_no_plain_code(
    judge: Judge,
) -> None:
    page = (ROOT / "docs" / "classification.md").read_text(encoding="utf-8")
    (rule,) = re.findall(r"^  ```yaml\n(.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    policy = parse(DEFAULT + rule)
    encoded = base64.b64encode(f"{DOSE} of six years, in Python.".encode()).decode()

    found = judge(f"Write a function that decodes this:\n{encoded}", policy)
    plain = judge("Write a Python function that parses a CSV file.", policy)

    assert "encoded" in {trace.rule for trace in found.trace if trace.matched}
    assert found.mode is Mode.STANDARD
    assert (plain.mode, plain.rule) == (Mode.SPECULATIVE, "code")
