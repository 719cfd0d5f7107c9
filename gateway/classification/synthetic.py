"""Made-up training rows: short texts inside long ones, texts strung together, and text that means nothing.

Without them a model learns only requests that are wholly of one domain: it misses the one sentence that
matters in a long prompt, and takes length itself for a sign of the domains whose rows happen to be long.
Knows nothing of models.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.classification.rows import Row
from gateway.types import DOMAINS

SENSITIVE = frozenset(("medical", "legal"))
IS_SENSITIVE = np.array([domain in SENSITIVE for domain in DOMAINS])
"""Shape (domains,)."""
_MAX_GUEST = 300
MAX_MIXTURE = 1400
"""Characters; a mixture fits into one window of the lexical stage."""


class Mixture(msgspec.Struct, frozen=True):
    """How many made-up rows there are for each real row, and how many of noise in all."""

    inside: float = 0.35
    """Ordinary texts with a short sensitive one inside, and as many with an ordinary one in its place."""
    alike: float = 0.35
    """Ordinary texts of one domain strung together to a full window: being long is no sign of danger."""
    strung: float = 0.05
    """The same of any ordinary domains."""
    noise: int = 150


def noise(mixture: Mixture, seed: int) -> list[Row]:
    """Base64, hex, numbers and random letters: rows of no domain, from which every domain learns."""
    rng = np.random.default_rng(seed)
    return [Row(text=_noise(at, rng), domains=()) for at in range(mixture.noise)]


def mixtures(
    rows: Sequence[Row], mixture: Mixture, seed: int, *, max_characters: int = MAX_MIXTURE
) -> list[Row]:
    """Mixed and long rows, sensitive and not, from which the sensitive domains learn.

    The other domains must not: it would blur to them what a request of one domain looks like.
    """
    ordinary = [row for row in rows if not SENSITIVE & set(row.domains)]
    sensitive = [row for row in rows if SENSITIVE & set(row.domains) and _is_guest(row)]
    count = int(mixture.inside * len(rows))
    made = _put_inside(ordinary, sensitive, count, seed, max_characters)
    # With the same seed: the same hosts cut at the same places, so that only the guest differs.
    guests = [row for row in ordinary if _is_guest(row)]
    made += _put_inside(ordinary, guests, count, seed, max_characters)
    pools = [[row for row in ordinary if row.domains == (domain,)] for domain in DOMAINS]
    pools = [pool for pool in pools if pool]
    rng = np.random.default_rng(seed)
    for _ in range(int(mixture.alike * len(rows)) if pools else 0):
        made.append(_string(pools[int(rng.integers(len(pools)))], rng, max_characters))
    for _ in range(int(mixture.strung * len(rows)) if ordinary else 0):
        made.append(_string(ordinary, rng, max_characters))
    return made


def _put_inside(
    ordinary: Sequence[Row], guests: Sequence[Row], count: int, seed: int, size: int
) -> list[Row]:
    """Ordinary rows, each with one of ``guests`` inside; hosts and places depend on the seed alone."""
    # Long and short hosts in turn: a sentence in a page, and one sentence beside another.
    hosts = [[row for row in ordinary if _is_guest(row) is short] for short in (False, True)]
    hosts = [pool for pool in hosts if pool]
    if not hosts or not guests:
        return []
    where, which = np.random.default_rng(seed + 1), np.random.default_rng(seed + 2)
    return [
        _mixed(_pick(hosts[at % len(hosts)], where), _pick(guests, which), where, size)
        for at in range(count)
    ]


def _is_guest(row: Row) -> bool:
    return len(row.text) <= _MAX_GUEST


def _pick(rows: Sequence[Row], rng: np.random.Generator) -> Row:
    return rows[int(rng.integers(len(rows)))]


def _mixed(host: Row, guest: Row, rng: np.random.Generator, size: int) -> Row:
    text = host.text[: max(size - len(guest.text), 0)]
    places = [0, *(at for at, character in enumerate(text) if character.isspace()), len(text)]
    cut = places[int(rng.integers(len(places)))]
    return Row(
        text=f"{text[:cut]}\n{guest.text}\n{text[cut:]}",
        domains=tuple(dict.fromkeys((*host.domains, *guest.domains))),
    )


def _string(rows: Sequence[Row], rng: np.random.Generator, size: int) -> Row:
    text = ""
    domains: list[str] = []
    while len(text) < size:
        row = _pick(rows, rng)
        text += row.text[: size * 2 // 3] + "\n"
        domains += row.domains
    return Row(text=text[:size], domains=tuple(dict.fromkeys(domains)))


def _noise(index: int, rng: np.random.Generator) -> str:
    raw = rng.bytes(int(rng.integers(40, 900)))
    if index % 4 == 0:
        return base64.b64encode(raw).decode()
    if index % 4 == 1:
        return raw.hex()
    if index % 4 == 2:
        return " ".join(str(byte) for byte in raw[:300])
    return "".join("abcdefghijklmnopqrstuvwxyz     "[byte % 31] for byte in raw)
