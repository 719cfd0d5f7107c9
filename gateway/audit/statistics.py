"""Counts, tokens and durations of the requests that meet some filters, by what they have in common.

All is worked out in the database, over the facets alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gateway.audit.conditions import conditions
from gateway.audit.filters import Filters
from gateway.audit.schema import facets
from gateway.errors import InvalidRequest, cut

MAX_GROUPS = 1000
DEFAULT_BY = ("domain", "mode")
_PERCENT = (50, 95)


def _since_midnight(seconds: int) -> sa.ColumnElement[int]:
    """The beginning, in UTC, of the day or hour that a request arrived in."""
    return sa.cast(sa.func.floor(facets.c.created_at / seconds), sa.BigInteger) * seconds


DIMENSIONS: Mapping[str, sa.ColumnElement[Any]] = {
    "domain": facets.c.domain,
    "mode": facets.c.mode,
    "executed": facets.c.executed,
    "rule": facets.c.rule,
    "caller": facets.c.caller,
    "team": facets.c.team,
    "model": facets.c.model,
    "backend": facets.c.backend,
    "policy": facets.c.policy_hash,
    "verifier": facets.c.verifier_class,
    "attestation": facets.c.attestation,
    "day": _since_midnight(86400),
    "hour": _since_midnight(3600),
}
"""What can be grouped by; ``day`` and ``hour`` are seconds since the epoch, UTC."""

_DURATIONS = {
    "first_token": facets.c.first_token_seconds,
    "total": facets.c.total_seconds,
    "gateway": facets.c.gateway_seconds,
}


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds within which half, and 95 in a hundred, of the requests were; by nearest rank.

    None where no request has the duration, or where quantiles were not asked for.
    """

    p50: float | None = None
    p95: float | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that share these values."""

    by: Mapping[str, str | int | None]
    """Dimension → value; None where a request has none."""
    requests: int
    open: int
    """Without an outcome: still running, or left by a crash."""
    prompt_tokens: int
    completion_tokens: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    """Accepted draft tokens / proposed ones; None where none was proposed."""
    decode_tokens: int
    """Completion tokens after the first, summed over the requests that had text."""
    decode_seconds: float
    """From the first text to the end, summed over the requests that had text."""
    attestation_failed: int
    tightened: int
    denied: int
    errors: int
    """Failed, for another reason than that the policy denied them."""
    first_token: Quantiles
    total: Quantiles
    gateway: Quantiles
    """Of what classifying, deciding and recording took together."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """The groups, largest first."""

    by: tuple[str, ...]
    groups: tuple[Group, ...]
    truncated: bool = False
    """Whether there are more groups than are given."""


def dimensions(names: Sequence[str]) -> tuple[str, ...]:
    """Checked dimensions, each once. Raises InvalidRequest."""
    for name in names:
        if name not in DIMENSIONS:
            message = f"Cannot group by {cut(name)!r}; known: {', '.join(DIMENSIONS)}."
            raise InvalidRequest(message, param="by")
    return tuple(dict.fromkeys(names))


def compute(
    connection: sa.Connection, filters: Filters, by: Sequence[str], *, quantiles: bool = True
) -> Statistics:
    """The groups of the entries that meet ``filters``; without a dimension, one of them all.

    Quantiles sort the requests once for each duration, which is most of the time that this takes.
    """
    met = (
        sa.select(
            *(DIMENSIONS[name].label(f"by_{name}") for name in by),
            *(facets.c[name] for name in _COUNTED),
            *(column.label(f"in_{name}") for name, column in _DURATIONS.items()),
        )
        .where(*conditions(filters))
        .subquery()
    )
    keys = [met.c[f"by_{name}"] for name in by]
    query = (
        sa.select(*keys, *_sums(met)).group_by(*keys).order_by(sa.desc("requests"), *keys)
    ).limit(MAX_GROUPS + 1)
    rows = connection.execute(query).all()
    if not by and not rows[0].requests:
        rows = []
    wanted = _DURATIONS if quantiles else ()
    spread = {name: _spread(connection, met, by, name) for name in wanted}
    groups = tuple(_group(row, by, spread) for row in rows[:MAX_GROUPS])
    return Statistics(by=tuple(by), groups=groups, truncated=len(rows) > MAX_GROUPS)


_COUNTED = (
    "attestation",
    "denied",
    "failed",
    "tightened",
    "prompt_tokens",
    "completion_tokens",
    "draft_tokens",
    "accepted_tokens",
)


def _sums(met: sa.Subquery) -> Sequence[sa.ColumnElement[Any]]:
    def number(name: str, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0).label(name)

    tokens = ("prompt_tokens", "completion_tokens", "draft_tokens", "accepted_tokens")
    return (
        sa.func.count().label("requests"),
        *(sa.func.coalesce(sa.func.sum(met.c[name]), 0).label(name) for name in tokens),
        sa.func.coalesce(sa.func.sum(_after_the_first(met)), 0).label("decode_tokens"),
        sa.func.coalesce(sa.func.sum(met.c.in_total - met.c.in_first_token), 0.0).label(
            "decode_seconds"
        ),
        number("open", met.c.attestation.is_(None)),
        number("attestation_failed", met.c.attestation == "attestation_failed"),
        number("tightened", met.c.tightened.is_(True)),
        number("denied", met.c.denied.is_(True)),
        number("errors", sa.and_(met.c.failed.is_(True), met.c.denied.is_(False))),
    )


def _after_the_first(met: sa.Subquery) -> sa.ColumnElement[Any]:
    """Tokens of a request that came within its decode seconds: the first is there at their start."""
    tokens = met.c.completion_tokens
    return sa.case((sa.and_(met.c.in_first_token.is_not(None), tokens > 1), tokens - 1), else_=0)


def _spread(
    connection: sa.Connection,
    met: sa.Subquery,
    by: Sequence[str],
    name: str,
) -> Mapping[tuple[Any, ...], Quantiles]:
    """The quantiles of one duration by group: the value whose rank is the first to reach the share."""
    value = met.c[f"in_{name}"]
    keys = [met.c[f"by_{dimension}"] for dimension in by]
    ranked = (
        sa.select(
            *keys,
            value.label("value"),
            sa.func.row_number().over(partition_by=keys, order_by=value).label("rank"),
            sa.func.count().over(partition_by=keys).label("number"),
        )
        .where(value.is_not(None))
        .subquery()
    )
    reached = [
        sa.func.min(
            sa.case((ranked.c.rank * 100 >= ranked.c.number * percent, ranked.c.value))
        ).label(f"p{percent}")
        for percent in _PERCENT
    ]
    groups = [ranked.c[f"by_{dimension}"] for dimension in by]
    rows = connection.execute(sa.select(*groups, *reached).group_by(*groups))
    return {tuple(row[: len(by)]): Quantiles(row.p50, row.p95) for row in rows}


def _group(
    row: sa.Row[Any],
    by: Sequence[str],
    spread: Mapping[str, Mapping[tuple[Any, ...], Quantiles]],
) -> Group:
    values = tuple(row[: len(by)])
    worked_out = ("by", "acceptance_rate", "decode_seconds", *_DURATIONS)
    names = [name for name in Group.__struct_fields__ if name not in worked_out]
    fields: dict[str, Any] = {name: int(getattr(row, name)) for name in names}
    fields |= {name: spread.get(name, {}).get(values, Quantiles()) for name in _DURATIONS}
    proposed = fields["draft_tokens"]
    rate = fields["accepted_tokens"] / proposed if proposed else None
    return Group(
        by=dict(zip(by, values, strict=True)),
        acceptance_rate=rate,
        decode_seconds=float(row.decode_seconds),
        **fields,
    )
