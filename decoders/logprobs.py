"""Log-probabilities of tokens under the target model, before any processor.

Only the numbers that somebody asked for outlive a call: never a row of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from decoders.sequence import TokenLogprob

_ROWS = 32
"""Normalised at once: a prompt's rows are many, and each is as wide as the vocabulary."""


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogprob, ...]:
    """What each token has under its own row of ``logits`` [at least len(token_ids), vocab].

    ``num_top`` of the most likely tokens of the row go with it.
    """
    found: list[TokenLogprob] = []
    for first in range(0, len(token_ids), _ROWS):
        part = token_ids[first : first + _ROWS]
        found += _under(logits[first : first + len(part)], part, num_top)
    return tuple(found)


def _under(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    law = logits.log_softmax(dim=-1)
    top = law.topk(min(num_top, law.shape[-1]), dim=-1)
    emitted = law[range(len(token_ids)), list(token_ids)].tolist()
    rows = zip(token_ids, emitted, top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        TokenLogprob(token_id, logprob, tuple(zip(ids, values, strict=True)))
        for token_id, logprob, ids, values in rows
    ]
