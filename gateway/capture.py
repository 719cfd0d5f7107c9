"""`Capture`: keeps prompts and answers where a decision says so: masked, cut to a size, and locked.

Whatever goes wrong costs the text, never the record of it, nor an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

from gateway.audit.base import TextLog
from gateway.audit.record import TextFacts
from gateway.audit.texts import Captured, ciphertext_digest
from gateway.audit.vault import Vault, purpose
from gateway.excerpt import Excerpt, MaskFailed, of_body, of_texts
from gateway.log import Log, build_log
from gateway.masking import Masker
from gateway.types import Decision

Kind = Literal["prompt", "answer"]


class Capture:
    """What becomes of the texts of requests."""

    def __init__(
        self,
        log_of_texts: TextLog,
        vault: Vault,
        maskers: Sequence[Masker],
        *,
        by_default: bool = False,
        max_bytes: int = 65536,
        clock: Callable[[], float] = time.time,
        log: Log | None = None,
    ) -> None:
        """``by_default``: whether texts are kept where a decision does not say."""
        self._texts = log_of_texts
        self._vault = vault
        self._maskers = maskers
        self._by_default = by_default
        self._max_bytes = max_bytes
        self._clock = clock
        self._log = log or build_log()

    def wants(self, decision: Decision) -> bool:
        """Whether the texts of a request that was decided so are to be kept."""
        return self._by_default if decision.capture is None else decision.capture == "text"

    async def keep(self, decision_id: str, body: bytes, answers: Sequence[str]) -> None:
        """Store the body, and the choices' texts where there are any. Raises AuditUnavailable."""
        captured = await asyncio.to_thread(self._captured, decision_id, body, answers)
        for one in captured:
            await self._texts.append_text(one)

    def _captured(self, decision_id: str, body: bytes, answers: Sequence[str]) -> list[Captured]:
        limits = (self._maskers, self._max_bytes)
        found = [self._one(decision_id, "prompt", lambda: of_body(body, *limits))]
        if answers:
            found.append(self._one(decision_id, "answer", lambda: of_texts(answers, *limits)))
        return found

    def _one(self, decision_id: str, kind: Kind, excerpt: Callable[[], Excerpt]) -> Captured:
        now = self._clock()
        try:
            text, masked, truncated = excerpt()
        except MaskFailed as error:
            # Without its words: they may quote the text.
            why = type(error.__cause__ or error).__name__
            self._log.error("text_dropped", decision_id=decision_id, kind=kind, error=why)
            dropped = TextFacts(
                decision_id=decision_id, kind=kind, captured_at=now, text_dropped="mask_failed"
            )
            return Captured(dropped, None)
        locked = self._vault.lock(text, purpose(decision_id, kind))
        facts = TextFacts(
            decision_id=decision_id,
            kind=kind,
            captured_at=now,
            size=len(text),
            truncated=truncated,
            masked=masked,
            key_id=locked.key_id,
            digest=ciphertext_digest(locked.ciphertext),
        )
        return Captured(facts, locked.ciphertext)
