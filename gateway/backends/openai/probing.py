"""What a server honours, seen from its answers. A few tokens each, at temperature 0 but where noted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from gateway.backends.openai.inspection import Place
from gateway.backends.openai.wire import authorization

_SECONDS = 30.0
_SECONDS_IN_ALL = 120.0
_WORDS: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "Count: one, two, three, four,"}],
    "max_tokens": 8,
    "temperature": 0,
}
_SCHEMA = {
    "type": "object",
    "properties": {"kind": {"const": "probe"}},
    "required": ["kind"],
    "additionalProperties": False,
}
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Sends fields and gives the answer, whole; None where it was refused."""


class Probed(NamedTuple):
    """What asking has shown."""

    seen: Mapping[str, bool]
    """Feature → whether its effect was seen. What could not be asked is not in it."""
    complete: bool
    """Whether every question was answered: what is missing for another reason may be asked again."""


async def probe(
    client: httpx.AsyncClient,
    place: Place,
    model: str,
    key: str | None,
    *,
    seconds: float = _SECONDS_IN_ALL,
) -> Probed:
    """Ask for every feature, for so long at most; never raises but for cancellation."""
    ask = asker(client, place, model, key)
    found: dict[str, bool] = {}
    try:
        async with asyncio.timeout(seconds):
            if await ask({}) is None:
                return Probed(found, complete=True)
            for name, judge in PROBES.items():
                seen = await judge(ask)
                if seen is not None:
                    found[name] = seen
    except (httpx.HTTPError, TimeoutError, BadAnswer, *UNREADABLE):
        return Probed(found, complete=False)
    return Probed(found, complete=True)


UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)
"""What reading an answer raises that is shaped as none."""


class BadAnswer(Exception):
    """An answer that is none."""


def asker(client: httpx.AsyncClient, place: Place, model: str, key: str | None) -> Ask:
    """How one server is asked; raises BadAnswer where it is broken."""

    async def ask(fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        body = msgspec.json.encode({"model": model, **_WORDS, **fields})
        answer = await client.post(
            f"{place.api}/chat/completions",
            content=body,
            headers={"content-type": "application/json", **authorization(key)},
            timeout=_SECONDS,
        )
        if answer.status_code in (400, 422, 501):
            return None
        try:
            found = msgspec.json.decode(answer.content) if answer.status_code == 200 else None
        except msgspec.MsgspecError:
            found = None
        if not isinstance(found, dict) or not found.get("choices"):
            raise BadAnswer(f"{place.root} answered {answer.status_code}")
        return found

    return ask


def text_of(answer: Mapping[str, Any]) -> str:
    """What the first choice says."""
    message = answer["choices"][0].get("message") or {}
    return str(message.get("content") or "")


def logprobs_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of the first choice's tokens."""
    found = answer["choices"][0].get("logprobs") or {}
    content = found.get("content") if isinstance(found, dict) else None
    return [entry for entry in content or () if isinstance(entry, dict)]


async def logprobs(ask: Ask) -> bool:
    """There are some, and not all say that the token was certain."""
    answer = await ask({"logprobs": True, "top_logprobs": 2, "temperature": 1.0})
    if answer is None:
        return False
    values = [entry.get("logprob") for entry in logprobs_of(answer)]
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return bool(numbers) and len(numbers) == len(values) and any(number < 0 for number in numbers)


async def min_p(ask: Ask) -> bool | None:
    """With 1 only the likeliest token is left, however hot it is; without, it says something else."""
    hot = {"temperature": 2.0, "seed": 3}
    plain, free, held = await ask({}), await ask(hot), await ask({**hot, "min_p": 1.0})
    if plain is None or free is None or held is None:
        return False if held is None else None
    if text_of(free) == text_of(plain):
        return None
    return text_of(held) == text_of(plain)


async def seed(ask: Ask) -> bool | None:
    """The same one says the same, another one something else."""
    answers = [await ask({"temperature": 1.5, "seed": number}) for number in (11, 11, 12, 13)]
    if any(answer is None for answer in answers):
        return False
    first, again, *others = [text_of(answer) for answer in answers if answer is not None]
    if first != again:
        return False
    return True if any(other != first for other in others) else None


async def json_schema(ask: Ask) -> bool:
    """A schema that allows one text gives that text."""
    wanted = {"name": "probe", "schema": _SCHEMA, "strict": True}
    answer = await ask(
        {"response_format": {"type": "json_schema", "json_schema": wanted}, "max_tokens": 32}
    )
    if answer is None:
        return False
    try:
        return bool(msgspec.json.decode(text_of(answer)) == {"kind": "probe"})
    except msgspec.MsgspecError:
        return False


async def logit_bias(ask: Ask) -> bool | None:
    """Two tokens that are all but forced change what is said."""
    plain = await ask({})
    biased = [await ask({"logit_bias": {str(token): 100}}) for token in (40, 50)]
    if plain is None:
        return None
    if any(answer is None for answer in biased):
        return False
    texts = [text_of(answer) for answer in biased if answer is not None]
    return texts[0] != texts[1] and all(text != text_of(plain) for text in texts)


async def continuation(ask: Ask) -> bool | None:
    """An answer that is to be continued takes fewer prompt tokens than one that was ended."""
    turns = [*_WORDS["messages"], {"role": "assistant", "content": "one, two,"}]
    ended = await ask({"messages": turns, "max_tokens": 1})
    open_ = await ask(
        {
            "messages": turns,
            "max_tokens": 1,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
    )
    if open_ is None:
        return False
    if ended is None:
        return None
    whole, begun = (_prompt_tokens(answer) for answer in (ended, open_))
    return begun < whole if whole and begun else None


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    count = (answer.get("usage") or {}).get("prompt_tokens")
    return count if isinstance(count, int) else 0


PROBES: Mapping[str, Callable[[Ask], Awaitable[bool | None]]] = {
    "logprobs": logprobs,
    "min_p": min_p,
    "seed": seed,
    "json_schema": json_schema,
    "logit_bias": logit_bias,
    "continuation": continuation,
}
"""Feature → what looks for its effect; None where nothing could be seen."""
