"""The contract: what the bars of bans catch and miss, measured, with the classifier that it holds for.

A file of its own, so that whoever is answerable can read, sign and keep it. How one is made is
`gateway.classification.promise`'s matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np

from gateway.classification.intervals import Rate
from gateway.classification.json_file import read_json
from gateway.classification.rows import Corpus
from gateway.classification.scoring import Probabilities
from gateway.types import DOMAINS

SHIPPED_CONTRACT = Path(__file__).parent / "weights" / "contract.json"
CONTRACT_VERSION = 1
MAX_CELLS = 50
_DIGITS = 6

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Scores(msgspec.Struct, frozen=True):
    """How a domain's probabilities were distributed: counts in cells that took about the same number."""

    edges: Annotated[tuple[Share, ...], msgspec.Meta(min_length=1)]
    """Ascending. Cell i holds what is above edge i - 1 and not above edge i; the last cell the rest."""
    counts: tuple[Count, ...]
    """One more than edges."""

    def __post_init__(self) -> None:
        if list(self.edges) != sorted(set(self.edges)) or len(self.counts) != len(self.edges) + 1:
            raise ValueError("scores need ascending edges, and one count more than edges")
        if not self.rows:
            raise ValueError("scores of no rows")

    @classmethod
    def of(cls, probabilities: Probabilities) -> Self:
        """The distribution of probabilities, shape (rows,)."""
        shares = np.linspace(0.0, 1.0, MAX_CELLS + 1)[1:]
        edges = np.unique(np.quantile(probabilities, shares, method="higher").round(_DIGITS))
        return cls(tuple(edges.tolist()), _counts(edges, probabilities))

    @property
    def rows(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def count(self, probabilities: Probabilities) -> tuple[int, ...]:
        """How many of other probabilities fall into each cell."""
        return _counts(np.array(self.edges), probabilities)


def _counts(edges: Probabilities, probabilities: Probabilities) -> tuple[int, ...]:
    cells = np.searchsorted(edges, probabilities.round(_DIGITS), side="left")
    return tuple(np.bincount(cells, minlength=len(edges) + 1).tolist())


class DomainContract(msgspec.Struct, frozen=True, kw_only=True):
    """What one bar does."""

    domain: str
    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)]
    recall: Rate
    """Rows of the domain that reach the bar."""
    miss_bound: Share
    """The miss rate is not above this, with the contract's confidence (one-sided, exact)."""
    false_bans: Rate
    """Rows of no guarded domain that reach this bar."""
    worst_source: str = ""
    """The source with enough rows whose recall is lowest."""
    worst_recall: Rate | None = None
    scores: Scores
    """Of all rows, whatever their domains, to compare later traffic with."""


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """What bars do, on which rows, with which classifier."""

    made_on: str
    """ISO date, UTC."""
    classifier: str
    classifier_hash: str
    held_out: bool
    """Whether each row was scored by a model that had not seen its source."""
    chosen: bool
    """Whether the bars were chosen on these rows; else they were given, and measured on them."""
    miss_rate: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    """The target."""
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    """Of each domain's bound by itself."""
    rows: Count
    sources: tuple[Corpus, ...]
    false_bans: Rate
    """Rows of no guarded domain that reach the bar of any."""
    domains: Annotated[tuple[DomainContract, ...], msgspec.Meta(min_length=1)]
    version: int = CONTRACT_VERSION

    def __post_init__(self) -> None:
        names = [one.domain for one in self.domains]
        if unknown := sorted(set(names) - set(DOMAINS)):
            raise ValueError(f"unknown domain {unknown[0]!r}")
        if len(set(names)) < len(names):
            raise ValueError("a domain stands twice in it")
        if self.version != CONTRACT_VERSION:
            raise ValueError(f"version {self.version}, this release reads {CONTRACT_VERSION}")

    def of(self, domain: str) -> DomainContract | None:
        """The part about one domain."""
        return next((one for one in self.domains if one.domain == domain), None)

    def meets(self, domain: DomainContract) -> bool:
        """Whether the bound on its misses is within the target."""
        return domain.miss_bound <= self.miss_rate

    def fits(self, hashes: Sequence[str]) -> bool:
        """Whether the classifier that it was measured with is among these."""
        return self.classifier_hash in hashes

    def dump(self) -> bytes:
        """The file's bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def read_contract(path: Path) -> Contract:
    """The contract in a file. Raises ConfigError naming the file and the fix."""
    hint = "write it with: draftgate classifier calibrate ROWS --out FILE"
    return read_json(path, Contract, what="a contract", hint=hint)
