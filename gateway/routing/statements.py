"""The statements of a ``_proof.yaml`` file as people write them: some requests, and what of their decision.

Proving them is `proofs`' matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec

from gateway.routing.schema import Temperature, Tokens
from gateway.routing.variables import Trust
from gateway.routing.when import Several, Text, When, described
from gateway.types import Decision, Mode

WISHES: tuple[Mode | None, ...] = (None, Mode.STANDARD, Mode.HYBRID, Mode.SPECULATIVE)
"""What callers may ask for."""

_Some = Annotated[tuple[Text, ...], Several]
_Modes = Annotated[tuple[Mode, ...], Several]
_Wish = Literal["none", "standard", "speculative", "hybrid"]


class Never(msgspec.Struct, frozen=True, kw_only=True):
    """Some requests, and a decision that none of them may get: one with all that is given."""

    when: Annotated[When | None, described("which requests; all of them if left out")] = None
    requested_mode: Annotated[
        Annotated[tuple[_Wish, ...], Several] | None,
        described("only requests whose caller asks for one of these", ["none"]),
    ] = None
    classifier_error: Annotated[
        bool | None, described("only requests with, or without, a failed or missing classifier")
    ] = None
    truncated: Annotated[
        bool | None, described("only requests with, or without, text that was not scored")
    ] = None
    mode: Annotated[_Modes | None, described("one of these", ["speculative", "hybrid"])] = None
    verifier: Annotated[_Some | None, described("one of these", ["coupled"])] = None
    lossy: Annotated[
        bool | None, described("whether the verifier may change what an answer says")
    ] = None
    denied: Annotated[bool | None, described("whether the request is refused")] = None
    draft_source: Annotated[
        _Some | None, described("one of these; `none` for no draft", ["suffix"])
    ] = None
    backend: Annotated[_Some | None, described("one of these", ["local"])] = None
    rule: Annotated[_Some | None, described("the decision bears one of these", ["medical"])] = None

    def __post_init__(self) -> None:
        if not any(True for _ in self.demands()):
            names = "`mode`, `verifier`, `lossy`, `denied`, `draft_source`, `backend` or `rule`"
            raise ValueError("says nothing of the decision", f"give {names}")

    def demands(self) -> Iterator[Callable[[Decision], bool]]:
        """What a decision must be to be the one that is spoken of."""
        if (modes := self.mode) is not None:
            yield lambda decision: decision.mode in modes
        if (verifiers := self.verifier) is not None:
            yield lambda decision: decision.verifier in verifiers
        if (lossy := self.lossy) is not None:
            yield lambda decision: (decision.max_distortion is not None) is lossy
        if (denied := self.denied) is not None:
            yield lambda decision: (decision.deny is not None) is denied
        if (sources := self.draft_source) is not None:
            yield lambda decision: (decision.draft.source if decision.draft else "none") in sources
        if (backends := self.backend) is not None:
            yield lambda decision: decision.backend in backends
        if (rules := self.rule) is not None:
            yield lambda decision: decision.rule in rules

    def trusts(self, trust: Trust) -> bool:
        """Whether requests are meant whose signals are trusted so. A missing signal is an error."""
        error = trust.classifier_error or bool(trust.missing)
        return self.classifier_error in (None, error) and self.truncated in (None, trust.truncated)

    def wishes(self) -> Iterator[Mode | None]:
        """What callers may ask for."""
        for wish in WISHES:
            if self.requested_mode is None or (wish or "none") in self.requested_mode:
                yield wish


class Always(Never, frozen=True, kw_only=True):
    """Some requests, and the decision that each of them must get."""

    max_temperature: Annotated[
        Temperature | None, described("capped, or fixed, at this or less")
    ] = None
    max_tokens: Annotated[Tokens | None, described("capped at this or less")] = None

    def demands(self) -> Iterator[Callable[[Decision], bool]]:
        """See `Never.demands`."""
        yield from super().demands()
        if (temperature := self.max_temperature) is not None:
            yield lambda decision: _within(
                (decision.limits.max_temperature, decision.limits.temperature), temperature
            )
        if (tokens := self.max_tokens) is not None:
            yield lambda decision: _within((decision.limits.max_tokens,), tokens)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is to be proved."""

    name: Annotated[Text, described("unique; says what must be so")]
    never: Annotated[Never | None, described("no such request gets such a decision")] = None
    always: Annotated[Always | None, described("every such request gets such a decision")] = None

    def __post_init__(self) -> None:
        if (self.never is None) is (self.always is None):
            raise ValueError("needs exactly one of `never` and `always`")

    @property
    def claim(self) -> Never:
        """Either of the two."""
        claim = self.never or self.always
        if claim is None:
            raise AssertionError(self.name)
        return claim


class ProofFile(msgspec.Struct, frozen=True):
    """A whole file of statements."""

    statements: Annotated[
        Annotated[tuple[Statement, ...], Several], described("what must be so for every request")
    ]


def _within(caps: tuple[float | None, ...], bound: float) -> bool:
    return any(cap is not None and cap <= bound for cap in caps)
