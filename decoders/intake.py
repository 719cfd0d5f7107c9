"""From a request to a ticket: what can never be served is refused here. Knows nothing of the loop."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from decoders.constraints import MinTokens
from decoders.models.base import LanguageModel, Tokenizer
from decoders.noise import noise_for
from decoders.params import ParameterError
from decoders.request import PromptTooLong, Request, Ticket
from decoders.sequence import TokenSequence


def check_prompt(prompt_ids: Sequence[int], model: LanguageModel) -> None:
    """Raise ParameterError when no request can have this prompt: PromptTooLong, empty, bad ids."""
    num_tokens, max_length = len(prompt_ids), model.max_length
    if num_tokens == 0:
        raise ParameterError("prompt", "is empty")
    if num_tokens >= max_length:
        raise PromptTooLong(num_tokens, max_length)
    if any(not 0 <= token_id < model.vocab_size for token_id in prompt_ids):
        raise ParameterError("prompt", f"has a token id outside 0..{model.vocab_size - 1}")


def make_ticket(
    request: Request, model: LanguageModel, tokenizer: Tokenizer, *, probed: bool
) -> Ticket:
    """The ticket of a request; ``probed``: whether a probe reads prompts. Raises ParameterError."""
    check_prompt(request.prompt_ids, model)
    if request.on_prefill is not None and not probed:
        raise ValueError("`on_prefill` would never be called: the engine has no probe")
    sequence = TokenSequence(
        request.prompt_ids,
        request.params,
        decode=tokenizer.decode,
        eos_ids=tokenizer.eos_ids,
        max_length=model.max_length,
    )
    seed = request.params.seed if request.params.seed is not None else secrets.randbits(63)
    ticket = Ticket(request, sequence, request.noise or noise_for(request.params, seed), -1)
    constraint = ticket.constraint
    if constraint is not None and (request.params.min_tokens or request.params.ignore_eos):
        name = "min_tokens" if request.params.min_tokens else "ignore_eos"
        raise ParameterError(name, "cannot go with a constraint, which says where to end")
    if request.params.min_tokens:
        ticket.constraint = MinTokens(request.params.min_tokens, sequence.end_ids, model.vocab_size)
    return ticket
