"""What becomes of the texts of requests, and that nothing goes wrong but for the text."""

from __future__ import annotations

import asyncio

from gateway.audit.erasure import Erased, Wanted
from gateway.audit.texts import Captured
from gateway.audit.vault import Locked, open_vault, purpose
from gateway.backends.scripted import ScriptedBackend
from gateway.capture import Capture
from gateway.errors import AuditUnavailable
from gateway.masking import Masked, PatternMasker
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import parse_policy
from gateway.service import Gateway
from gateway.telemetry import Telemetry
from gateway.types import Caller, ChatRequest, Message
from tests.records import decided
from tests.unit.test_service import FakeAudit, read

VAULT = open_vault([("k", b"t" * 64)])
POLICY = "version: 1\nname: unit\ndefault: {mode: standard, capture: text}\n"


class FakeTexts:
    def __init__(self) -> None:
        self.kept: list[Captured] = []
        self.error: Exception | None = None

    async def append_text(self, captured: Captured) -> None:
        if self.error is not None:
            raise self.error
        self.kept.append(captured)

    async def erase(self, wanted: Wanted) -> Erased:
        raise NotImplementedError


class Broken:
    def mask(self, text: str) -> Masked:
        raise RuntimeError(f"cannot read {text}")


def capture(texts: FakeTexts, masker: object = None, *, by_default: bool = False) -> Capture:
    assert VAULT is not None
    maskers = [masker or PatternMasker()]
    return Capture(texts, VAULT, maskers, by_default=by_default)  # type: ignore[list-item]


def text_of(captured: Captured) -> str:
    assert VAULT is not None
    facts, ciphertext = captured
    locked = Locked(facts.key_id, ciphertext or "")
    return VAULT.unlock(locked, purpose(facts.decision_id, facts.kind)).decode()


def test_a_decision_has_the_last_word() -> None:
    for by_default in (False, True):
        one = capture(FakeTexts(), by_default=by_default)
        assert one.wants(decided(capture="text").decision)
        assert not one.wants(decided(capture="none").decision)
        assert one.wants(decided().decision) is by_default


async def test_prompt_and_answers_are_kept_locked() -> None:
    texts = FakeTexts()

    await capture(texts).keep("dec_1", b'{"a": "ann@example.com"}', ["one", "two"])

    assert [text_of(one) for one in texts.kept] == ['{"a":"[email]"}', '["one","two"]']
    assert [one.facts.masked for one in texts.kept] == [{"email": 1}, {}]
    assert all("one" not in (one.ciphertext or "") for one in texts.kept)


async def test_a_failing_mask_drops_the_text_and_says_nothing_of_it(capsys: object) -> None:
    texts = FakeTexts()

    await capture(texts, Broken()).keep("dec_1", b'{"a": "secret"}', ["secret"])

    assert [(one.facts.text_dropped, one.ciphertext) for one in texts.kept] == [
        ("mask_failed", None)
    ] * 2
    out, err = capsys.readouterr()  # type: ignore[attr-defined]
    assert "text_dropped" in out
    assert "secret" not in out + err


async def test_texts_of_a_request_are_written_when_it_is_over_and_cost_no_answer() -> None:
    for error, metric in (
        (None, b'draftgate_audit_failures_total{record="text"} 0.0'),
        (AuditUnavailable("full"), b'draftgate_audit_failures_total{record="text"} 1.0'),
        (RuntimeError("bug"), b'draftgate_audit_failures_total{record="text"} 0.0'),
    ):
        texts, audit = FakeTexts(), FakeAudit()
        texts.error = error
        gateway = Gateway(
            backends={"first": ScriptedBackend()},
            policy=ActivePolicy(
                parse_policy(POLICY, "unit.yaml", verifiers=["coupled"], draft_sources=["suffix"])
            ),
            classifiers={},
            audit=audit,
            telemetry=Telemetry(["scripted"]),
            capture=capture(texts),
        )
        request = ChatRequest("scripted", (Message("user", "hello"),), body=b'{"x": "hello"}')

        answer = await read(await gateway.respond(request, Caller()))
        await asyncio.wait_for(gateway.aclose(), 5)

        assert answer == "This answer comes from a script."
        assert metric in gateway.telemetry.render()
        kept = [text_of(one) for one in texts.kept]
        assert kept == ([] if error else ['{"x": "hello"}', f'["{answer}"]'])
