"""``draftgate generate``: decode one prompt on the local engine, in one mode or in all of them."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.backends.base import Backend, Checker
from gateway.cli.local import load_local
from gateway.errors import InvalidRequest
from gateway.execution import Execution
from gateway.types import (
    ChatRequest,
    Decision,
    DraftSetting,
    FinishReason,
    Grammar,
    Job,
    Message,
    Mode,
    Sampling,
)


@dataclass(frozen=True)
class Answer:
    """One finished generation."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    execution: Execution

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first / seconds after the first."""
        seconds = self.execution.decode_seconds
        return (len(self.token_ids) - 1) / seconds if seconds else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target pass, the bonus token included."""
        return len(self.token_ids) / max(self.execution.num_steps, 1)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        ran = self.execution
        return {
            "mode": ran.mode,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "prompt_tokens": ran.usage.prompt_tokens,
            "completion_tokens": len(self.token_ids),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "draft_tokens_proposed": ran.num_draft_tokens,
            "draft_tokens_accepted": ran.num_accepted_tokens,
            "why_k": dict(ran.why_k),
            "cached_tokens": ran.usage.cached_tokens,
            "mean_acceptance_length": round(self.mean_acceptance_length, 3),
            "prefill_seconds": round(ran.prefill_seconds, 4),
            "decode_seconds": round(ran.decode_seconds, 4),
        }


@click.command()
@click.argument("prompt")
@click.option("--mode", type=click.Choice([mode.value for mode in Mode]), default="standard")
@click.option("--compare", is_flag=True, help="Run all three modes and compare their tokens.")
@click.option("--seed", type=int, help="Default: drawn, and shown.")
@click.option("--temperature", type=float, default=0.8, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--num-speculative-tokens", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--standard-first", type=click.IntRange(0), default=10, show_default=True)
@click.option("--content-tokens", is_flag=True, help="Hybrid: decode content tokens undrafted.")
@click.option(
    "--json-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the JSON schema that the answer is held to.",
)
@click.option("--regex", help="The pattern that the whole answer is held to.")
@click.option("--system", help="A system message before the prompt.")
@click.option("--model", help="A folder, a .gguf file, a hub id, or demo.")
@click.option(
    "--draft-source", default="suffix", show_default=True, help="Who drafts: suffix, model, …"
)
@click.option("--draft-model", help="For the source model: a folder, a .gguf file, or a hub id.")
@click.option(
    "--draft-layers",
    type=click.IntRange(1),
    help="Draft with the first layers of the draft model; without one, of the model itself.",
)
@click.option(
    "--audit", is_flag=True, help="Freeze the cost model: it learns nothing while it decodes."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text and table.")
def generate(
    prompt: str,
    mode: str,
    compare: bool,
    seed: int | None,
    temperature: float,
    top_p: float,
    max_tokens: int,
    num_speculative_tokens: int,
    standard_first: int,
    content_tokens: bool,
    json_schema: Path | None,
    regex: str | None,
    system: str | None,
    model: str | None,
    draft_source: str,
    draft_model: str | None,
    draft_layers: int | None,
    audit: bool,
    as_json: bool,
) -> None:
    """Decode PROMPT ("-" reads standard input) and show what the engine did."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise InvalidRequest("The prompt is empty.")
    chat = [("system", system)] if system else []
    request = ChatRequest(
        model="",
        messages=tuple(Message(role, content) for role, content in [*chat, ("user", text)]),
        sampling=Sampling(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=secrets.randbits(31) if seed is None else seed,
        ),
        grammar=_grammar(json_schema, regex),
    )
    hybrid = {
        "standard_first": standard_first,
        "content_tokens": Mode.STANDARD if content_tokens else Mode.SPECULATIVE,
    }
    draft = DraftSetting(draft_source, num_speculative_tokens)
    given = {"model": model, "draft_model": draft_model, "draft_layers": draft_layers}
    decisions = [
        _decision(wanted, draft, hybrid) for wanted in (list(Mode) if compare else [Mode(mode)])
    ]
    stream = sys.stdout if not (compare or as_json) else None
    answers = asyncio.run(_run(given, request, decisions, stream, audit=audit))
    _show(answers, request.sampling.seed, as_json=as_json, compare=compare)


def _grammar(json_schema: Path | None, regex: str | None) -> Grammar | None:
    if json_schema is not None and regex is not None:
        raise InvalidRequest("--json-schema and --regex both say what the answer may be; give one.")
    if json_schema is not None:
        source = json_schema.read_text(encoding="utf-8", errors="replace")
        return Grammar("json_schema", source, "--json-schema")
    return None if regex is None else Grammar("regex", regex, "--regex")


def _decision(mode: Mode, draft: DraftSetting, hybrid: dict[str, Any]) -> Decision:
    return Decision(
        mode=mode,
        rule="command-line",
        policy="command-line",
        policy_hash="",
        draft=None if mode is Mode.STANDARD else draft,
        **(hybrid if mode is Mode.HYBRID else {}),
    )


async def _run(
    given: Mapping[str, Any],
    request: ChatRequest,
    decisions: list[Decision],
    stream: TextIO | None,
    *,
    audit: bool,
) -> list[Answer]:
    cost_model = {"cost_model": "frozen"} if audit else {}
    backend = await asyncio.to_thread(load_local, {**given, **cost_model})
    try:
        if isinstance(backend, Checker):
            for decision in decisions:
                backend.check(decision)
        return [await _answer(backend, request, decision, stream) for decision in decisions]
    finally:
        await backend.aclose()


async def _answer(
    backend: Backend, request: ChatRequest, decision: Decision, stream: TextIO | None
) -> Answer:
    from gateway.backends.local.generation import LocalGeneration

    prompt = await backend.prepare(request)
    job = Job("command-line", request, decision, request.sampling, prompt)
    generation = await backend.generate(job)
    assert isinstance(generation, LocalGeneration)  # noqa: S101 - the backend is the local one
    text, reason = "", None
    async for chunk in generation:
        text += chunk.text
        reason = chunk.finish_reason
        if stream is not None:
            stream.write(chunk.text)
            stream.flush()
    return Answer(text, generation.outputs[0], reason, generation.execution)


def _show(answers: list[Answer], seed: int | None, *, as_json: bool, compare: bool) -> None:
    others = [answer for answer in answers if answer.token_ids != answers[0].token_ids]
    if as_json:
        rows = [answer.as_dict() for answer in answers]
        several = {"seed": seed, "runs": rows, "tokens_equal": not others}
        click.echo(msgspec.json.encode(several if compare else {"seed": seed, **rows[0]}).decode())
        return
    if compare:
        click.echo(answers[0].text)
    click.echo()
    console = Console()
    console.print(_table(answers, seed, compare=compare), width=max(console.width, 100))
    for answer in answers:
        if answer.execution.why_k:
            click.echo(f"{answer.execution.mode}: {_reasons(answer.execution)}")
    for answer in others:
        click.echo(f"{answer.execution.mode} wrote instead:\n{answer.text}")


def _table(answers: list[Answer], seed: int | None, *, compare: bool) -> Table:
    table = Table(title=f"seed {seed}")
    table.add_column("mode")
    for name in ("tokens", "tokens/s", "proposed", "accepted", "mean acceptance length"):
        table.add_column(name, justify="right")
    if compare:
        table.add_column("same tokens")
    for answer in answers:
        ran = answer.execution
        table.add_row(
            str(ran.mode and ran.mode.value),
            str(len(answer.token_ids)),
            f"{answer.tokens_per_second:.1f}",
            str(ran.num_draft_tokens),
            str(ran.num_accepted_tokens),
            f"{answer.mean_acceptance_length:.2f}",
            *([_sameness(answer, answers[0])] if compare else []),
        )
    return table


def _reasons(ran: Execution) -> str:
    """Why the drafts were as long as they were, the most frequent reason first."""
    counts = sorted(ran.why_k.items(), key=lambda entry: -entry[1])
    return "draft length set by " + ", ".join(f"{why} {count}" for why, count in counts)


def _sameness(answer: Answer, first: Answer) -> str:
    if answer is first:
        return "(reference)"
    if answer.token_ids == first.token_ids:
        return "yes"
    pairs = zip(answer.token_ids, first.token_ids, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    shorter = min(len(answer.token_ids), len(first.token_ids))
    return f"no, from token {shorter if shared is None else shared}"
