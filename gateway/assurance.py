"""What the classifier's contract says of the bans of a policy: how much each catches, if anybody knows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.classification.contract import Contract
from gateway.classification.intervals import Rate
from gateway.routing.bars import Bar, bars
from gateway.routing.policy import Policy
from gateway.types import SHORT_HASH_LENGTH

NO_CONTRACT = "no contract for this threshold"


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one bar of one ban."""

    rule: str
    domain: str
    threshold: float
    contract_threshold: float | None = None
    """Where it was measured; the bar is there or lower. None where nothing holds."""
    recall: Rate | None = None
    """At ``contract_threshold``; a lower bar catches no less."""
    miss_bound: float | None = None
    confidence: float | None = None
    """Of ``miss_bound``."""
    false_bans: Rate | None = None
    """At ``contract_threshold``; a lower bar bans no less."""
    classifier_hash: str | None = None
    note: str = ""
    """Why nothing holds, or what limits it."""


class Assured:
    """A contract, held against the classifiers that are loaded."""

    def __init__(
        self, contract: Contract | None = None, *, hashes: Sequence[str] | None = None
    ) -> None:
        """``hashes`` are those of the loaded classifiers; None leaves that unchecked."""
        self._contract = contract
        self._mismatch = ""
        if contract is not None and hashes is not None and not contract.fits(hashes):
            short = contract.classifier_hash[:SHORT_HASH_LENGTH]
            self._mismatch = (
                f"the contract of {contract.made_on} is about classifier {short}, which is not "
                "loaded: nothing is known of the bans; calibrate anew"
            )

    def guarantees(self, policy: Policy) -> tuple[Guarantee, ...]:
        """One for every bar of every ban, in the order of the rules."""
        return tuple(map(self._guarantee, bars(policy)))

    def warnings(self, policy: Policy) -> tuple[str, ...]:
        """The bars of the contract's domains that it does not cover; none without a contract."""
        if self._contract is None:
            return ()
        if self._mismatch:
            guarded = {one.domain for one in self._contract.domains}
            needed = any(bar.domain in guarded for bar in bars(policy))
            return (self._mismatch,) if needed else ()
        return tuple(
            f"rule {bar.rule!r}: {NO_CONTRACT}: it bans {bar.domain} from {bar.threshold:g} on, "
            f"what it catches was measured at {known.threshold:g}"
            for bar in bars(policy)
            if (known := self._contract.of(bar.domain)) is not None
            and bar.threshold > known.threshold
        )

    def _guarantee(self, bar: Bar) -> Guarantee:
        contract = self._contract
        known = contract.of(bar.domain) if contract is not None else None
        if contract is None or known is None or self._mismatch or bar.threshold > known.threshold:
            note = self._mismatch or NO_CONTRACT
            return Guarantee(rule=bar.rule, domain=bar.domain, threshold=bar.threshold, note=note)
        return Guarantee(
            rule=bar.rule,
            domain=bar.domain,
            threshold=bar.threshold,
            contract_threshold=known.threshold,
            recall=known.recall,
            miss_bound=known.miss_bound,
            confidence=contract.confidence,
            false_bans=known.false_bans,
            classifier_hash=contract.classifier_hash,
            note=bar.limited,
        )
