"""What is known to go wrong when engines speculate, tried against a server from outside.

Each check asks a few short questions and judges the answers by themselves or side by side; none
needs to know the model. `docs/upstreams.md` lists the faults that gave rise to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.backends.openai.events import EventReader, TooLong
from gateway.backends.openai.probing import PROBES, UNREADABLE, Ask, BadAnswer, logprobs_of, text_of

Verdict = Literal["ok", "failed", "near_tie", "unknown"]
LONG = 24
_NEAR = 0.1
"""Nats between two tokens: rounding, which differs with the batch, can decide between them."""
_PROSE: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "Say the days of the week twice, apart by commas."}],
    "max_tokens": LONG,
}
_CHARACTERS: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": "Repeat: 안녕하세요 👩‍🚀 naïve 日本語 👍🏽"}],
    "max_tokens": 2 * LONG,
}
_NEIGHBOURS = 6


class Result(msgspec.Struct, frozen=True):
    """What one check has found."""

    check: str
    verdict: Verdict
    detail: str = ""


class Server(NamedTuple):
    """How a server is asked."""

    ask: Ask
    stream: Callable[[Mapping[str, Any]], Awaitable[bytes]]
    """Sends fields and gives the bytes of the event stream."""


Found = tuple[Verdict, str]
Check = Callable[[Server], Awaitable[Found]]


class _Refused(Exception):
    """The server does not take these fields, so there is nothing to see."""


async def run(check: str, server: Server) -> Result:
    """One check by its name; a server that breaks fails it."""
    try:
        verdict, detail = await CHECKS[check](server)
    except _Refused:
        verdict, detail = "unknown", "the server refuses such a request, as it should if it cannot"
    except BadAnswer as error:
        verdict, detail = "failed", str(error)
    except UNREADABLE as error:
        verdict, detail = "failed", f"its answer cannot be read: {type(error).__name__}: {error}"
    return Result(check, verdict, detail)


async def _exact_length(server: Server) -> Found:
    """An accepted draft is cut at max_tokens."""
    for longest in (1, 2, 5, 7):
        answer = await _asked(server, {**_PROSE, "max_tokens": longest})
        count = (answer.get("usage") or {}).get("completion_tokens")
        reason = answer["choices"][0].get("finish_reason")
        if not isinstance(count, int):
            return "unknown", "the server does not say how many tokens there are"
        if count > longest or (reason == "length" and count != longest):
            return "failed", f"max_tokens {longest} gave {count} tokens, finish_reason {reason}"
    return "ok", ""


async def _stop_string(server: Server) -> Found:
    """A stop string within an accepted draft ends the answer there, and says so."""
    whole = text_of(await _asked(server, _PROSE))
    for start in range(len(whole) // 4, len(whole) - 4, max(len(whole) // 6, 1)):
        stop = whole[start : start + 3]
        answer = await _asked(server, {**_PROSE, "stop": [stop]})
        expected, text = whole[: whole.index(stop)], text_of(answer)
        if text.rstrip() != expected.rstrip():
            return "failed", f"stop {stop!r}: {text!r} in place of {expected!r}"
        if answer["choices"][0].get("finish_reason") != "stop":
            return "failed", f"stop {stop!r}: finish_reason is not stop"
    return ("ok", "") if len(whole) > 8 else ("unknown", "the answer is too short to cut")


async def _stop_logprobs(server: Server) -> Found:
    """After a stop string no log-probabilities of later tokens are left."""
    whole = text_of(await _asked(server, _PROSE))
    stop = whole[len(whole) // 2 :][:2]
    if len(stop) < 2:
        return "unknown", "the answer is too short to cut"
    answer = await _asked(server, {**_PROSE, "stop": [stop], "logprobs": True})
    entries = logprobs_of(answer)
    if not entries:
        return "unknown", "there are no log-probabilities"
    before = "".join(str(entry.get("token", "")) for entry in entries[:-1])
    if stop in before:
        return "failed", f"{len(entries)} log-probabilities go on after the stop string"
    return "ok", ""


async def _bias_everywhere(server: Server) -> Found:
    """A bias holds at every position of a draft too: a token that is all but forced comes always."""
    for token in (40, 50):
        answer = await _asked(server, {**_PROSE, "logit_bias": {str(token): 100}})
        text = text_of(answer)
        count = (answer.get("usage") or {}).get("completion_tokens")
        if not isinstance(count, int) or count < 4 or len(text) < count:
            continue
        piece = text[: len(text) // count]
        if piece * count != text:
            return "failed", f"token {token} was all but forced, and the answer is {text[:40]!r}"
        return "ok", ""
    return "unknown", "the tokens that were tried show nothing"


async def _top_k_one(server: Server) -> Found:
    """With one token left, the temperature changes nothing: processors hold while verifying."""
    plain = text_of(await _asked(server, _PROSE))
    hot = text_of(await _asked(server, {**_PROSE, "temperature": 1.5, "top_k": 1, "seed": 3}))
    return _same(plain, hot, "temperature 0 and top_k 1")


async def _greedy_neighbours(server: Server) -> Found:
    """Neighbours in the batch change nothing at temperature 0."""
    alone = text_of(await _asked(server, _PROSE))
    together = await asyncio.gather(*(_asked(server, _PROSE) for _ in range(_NEIGHBOURS)))
    others = [text_of(answer) for answer in together if text_of(answer) != alone]
    if not others:
        return "ok", ""
    near = [await _is_near_tie(server, _PROSE, alone, other) for other in dict.fromkeys(others)]
    return "near_tie" if all(near) else "failed", f"{len(others)} of {_NEIGHBOURS} differ"


async def _seed_neighbours(server: Server) -> Found:
    """A seed gives the same answer whoever is decoded beside it."""
    seeded = {**_PROSE, "temperature": 1.0, "seed": 17}
    alone = [text_of(await _asked(server, seeded)) for _ in range(2)]
    if alone[0] != alone[1]:
        return "failed", "the same seed gives two answers"
    noise = [{**_PROSE, "temperature": 1.2, "seed": 100 + i} for i in range(_NEIGHBOURS)]
    first, *_ = await asyncio.gather(*(_asked(server, each) for each in (seeded, *noise)))
    return _same(alone[0], text_of(first), "alone and among others")


async def _stream_is_whole(server: Server) -> Found:
    """A stream says what the whole answer says."""
    whole = text_of(await _asked(server, _PROSE))
    return _same(whole, _streamed(await server.stream(_PROSE)), "whole and streamed")


async def _characters(server: Server) -> Found:
    """No half a character is sent where an accepted draft is cut into pieces."""
    text = _streamed(await server.stream(_CHARACTERS))
    if "\ufffd" in text.rstrip("\ufffd"):
        return "failed", f"a replacement character in {text[:60]!r}"
    return "ok", ""


async def _choices(server: Server) -> Found:
    """Several choices all end, each once."""
    answer = await _asked(server, {**_PROSE, "n": 3, "temperature": 1.0})
    reasons = [choice.get("finish_reason") for choice in answer["choices"]]
    if len(reasons) != 3 or not all(reason in ("stop", "length") for reason in reasons):
        return "failed", f"n 3 gave the endings {reasons}"
    return "ok", ""


def _seen(feature: str) -> Check:
    async def check(server: Server) -> Found:
        seen = await PROBES[feature](server.ask)
        if seen is None:
            return "unknown", "the answers show nothing"
        return ("ok", "") if seen else ("failed", f"{feature} is not heeded, or is refused")

    check.__doc__ = PROBES[feature].__doc__
    return check


CHECKS: Mapping[str, Check] = {
    "exact_length": _exact_length,
    "stop_string": _stop_string,
    "stop_logprobs": _stop_logprobs,
    "logprobs": _seen("logprobs"),
    "min_p": _seen("min_p"),
    "top_k_one": _top_k_one,
    "logit_bias": _seen("logit_bias"),
    "logit_bias_everywhere": _bias_everywhere,
    "json_schema": _seen("json_schema"),
    "seed": _seen("seed"),
    "seed_among_neighbours": _seed_neighbours,
    "greedy_among_neighbours": _greedy_neighbours,
    "stream_is_whole": _stream_is_whole,
    "whole_characters": _characters,
    "choices": _choices,
    "continuation": _seen("continuation"),
}
"""Name → what is tried."""


async def against(server: Server, twin: Server) -> Result:
    """Whether a server and its twin say the same at temperature 0."""
    for number, question in enumerate((_PROSE, _CHARACTERS, {"max_tokens": LONG})):
        try:
            ours, others = [text_of(await _asked(each, question)) for each in (server, twin)]
            verdict, detail = _same(ours, others, "this server and its twin")
            if verdict != "ok" and await _is_near_tie(server, question, ours, others):
                verdict = "near_tie"
        except BadAnswer as error:
            return Result("against", "failed", str(error))
        except UNREADABLE as error:
            return Result("against", "failed", f"an answer cannot be read: {error}")
        except _Refused:
            return Result("against", "unknown", "a server refuses the question")
        if verdict != "ok":
            return Result("against", verdict, f"question {number}: {detail}")
    return Result("against", "ok")


async def _asked(server: Server, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    answer = await server.ask(fields)
    if answer is None:
        raise _Refused
    return answer


def _same(one: str, other: str, what: str) -> Found:
    if one == other:
        return "ok", ""
    length = _common(one, other)
    return (
        "failed",
        f"{what} differ from character {length} on: {one[length:][:20]!r} and {other[length:][:20]!r}",
    )


def _common(one: str, other: str) -> int:
    """How many characters are alike, from the beginning."""
    return next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


async def _is_near_tie(server: Server, question: Mapping[str, Any], text: str, other: str) -> bool:
    """Whether the server was all but undecided where its text and another first differ.

    False where it does not show how sure it was: then nothing excuses the difference.
    """
    answer = await server.ask({**question, "logprobs": True, "top_logprobs": 2})
    if answer is None or text_of(answer) != text:
        return False
    length, place = _common(text, other), 0
    for entry in logprobs_of(answer):
        place += len(str(entry.get("token", "")))
        if place > length:
            values = [each.get("logprob") for each in entry.get("top_logprobs") or ()]
            numbers = [value for value in values if isinstance(value, int | float)]
            return len(numbers) > 1 and abs(numbers[0] - numbers[1]) < _NEAR
    return False


def _streamed(data: bytes) -> str:
    """The text of the first choice."""
    text = []
    try:
        for event in EventReader().feed(data):
            found = None if event == b"[DONE]" else msgspec.json.decode(event)
            for choice in found.get("choices") or () if isinstance(found, dict) else ():
                text.append((choice.get("delta") or {}).get("content") or "")
    except (TooLong, msgspec.MsgspecError, AttributeError) as error:
        raise BadAnswer(f"its stream cannot be read: {error}") from None
    return "".join(text)
