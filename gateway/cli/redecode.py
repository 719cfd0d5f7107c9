"""``draftgate decisions replay``: decode a logged request again, and prove its tokens or the difference."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from gateway import credentials, extensions
from gateway.audit.digests import Digest, Digests
from gateway.audit.keys import keyring
from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord
from gateway.backends.base import Backend
from gateway.cli.entries import plain
from gateway.cli.models import fetch_models, settle_waiting
from gateway.cli.printing import print_json
from gateway.cli.request_file import parse_request, read_bytes
from gateway.cli.texts import captured_texts
from gateway.config import BackendConfig, GatewayConfig
from gateway.errors import ConfigError, InvalidRequest, Problem
from gateway.redecode import Redecoded, decode_again
from gateway.types import ChatRequest, Message

_FASTER_START = {"probe": "off", "cost_model": "off"}
"""Neither changes a token."""


def replay(
    entry: Entry,
    settings: GatewayConfig,
    *,
    url: str,
    by: str,
    body: Path | None,
    prompt_file: Path | None,
    model: str | None,
    as_json: bool,
) -> bool:
    """Decode again, print what came of it, and say whether the tokens are the same."""
    texts: dict[str, str] = {}
    if body is None and prompt_file is None:
        texts = captured_texts(entry.decision.decision_id, url, settings.audit, by=by)
    digests = Digests(keyring(credentials.signing_secrets(settings.audit)))
    request = _request(entry.decision, body, prompt_file, texts, digests)
    with Console(stderr=True).status("Decoding again …"):
        whole = _whole_answer(entry, texts)
        found = asyncio.run(_decoded(entry, settings, request, model, digests, whole))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for line in _lines(found):
            click.echo(plain(line))
    return found.equal


def _request(
    record: DecisionRecord,
    body: Path | None,
    prompt_file: Path | None,
    texts: dict[str, str],
    digests: Digests,
) -> ChatRequest:
    if prompt_file is not None:
        return _of_prompt(record, prompt_file)
    if body is not None:
        raw, place = read_bytes(body), body
    elif "prompt" in texts:
        raw, place = texts["prompt"].encode(), Path("captured text")
    else:
        raise InvalidRequest("The log has no text of this request; give its --body.")
    if not digests.has(Digest(record.request.digest, record.request.digest_key), raw):
        what = "is not the body of this request, byte for byte"
        if body is None:
            what = "was masked or cut, so it is not what was answered; give the --body"
        raise ConfigError([Problem(f"{what}: its digest is another", path=place)])
    return parse_request(raw, place, record.request.endpoint)


def _of_prompt(record: DecisionRecord, path: Path) -> ChatRequest:
    """A request with nothing but a prompt; whether it is the right one, the answer's digest shows."""
    facts = record.request
    if facts.has_tools or facts.response_format != "text":
        raise InvalidRequest("The request had tools or a response format; give its whole --body.")
    text = read_bytes(path).decode("utf-8", "replace")
    shape: dict[str, Any] = {"n": facts.n, "best_of": facts.best_of}
    if facts.endpoint == "completions":
        return ChatRequest(facts.model, prompt=text, **shape)
    return ChatRequest(facts.model, messages=(Message("user", text),), **shape)


def _whole_answer(entry: Entry, texts: dict[str, str]) -> Sequence[str]:
    """The captured choices, where they are there as they were given."""
    whole = any(f.kind == "answer" and not (f.masked or f.truncated) for f in entry.texts)
    return json.loads(texts["answer"]) if whole and "answer" in texts else ()


async def _decoded(
    entry: Entry,
    settings: GatewayConfig,
    request: ChatRequest,
    model: str | None,
    digests: Digests,
    captured: Sequence[str],
) -> Redecoded:
    backend = await asyncio.to_thread(_load, entry, settings, model)
    try:
        return await decode_again(entry, request, backend, digests, captured)
    finally:
        await backend.aclose()


def _load(entry: Entry, settings: GatewayConfig, model: str | None) -> Backend:
    """The local backend that answered, or the first one where that is not configured here."""
    local = {name: b for name, b in settings.backends.items() if b.type == "local"}
    name = entry.decision.backend
    if name not in local:
        name = next(iter(local), "local")
    options = {**(local[name].options if name in local else {}), **_FASTER_START}
    if model is not None:
        options["model"] = model
    chosen = BackendConfig("local", options)
    settings = msgspec.structs.replace(settings, backends={name: chosen})
    settle_waiting(settings)
    fetch_models(settings)
    backend: Backend = extensions.build("backends", "local", options, name=name)
    return backend


def _lines(found: Redecoded) -> Iterator[str]:
    tokens = sum(found.num_tokens)
    if found.equal:
        yield f"Equal: the {tokens} tokens of {found.decided} mode are those of standard mode."
    else:
        different = [str(i) for i, same in enumerate(found.answers) if not same]
        yield f"Different from what was emitted in {found.decided} mode: answer {', '.join(different)}."
        yield from _where(found)
    for note in found.notes:
        yield f"note: {note}"


def _where(found: Redecoded) -> Iterator[str]:
    difference = found.difference
    if difference is not None and difference.position is not None:
        margin = "no other token was possible there"
        if difference.margin is not None:
            margin = f"the standard run's token was {difference.margin:.3g} nats ahead"
        yield f"first at token {difference.position} of answer {difference.answer}: {margin}"
    elif found.character is not None:
        yield f"first at character {found.character} of the captured answer"
    else:
        yield "where it begins cannot be told: decoding as decided gives other tokens too"
