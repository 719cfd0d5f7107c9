"""How a terminal shows entries of the decision log. Knows nothing of where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gateway.audit.attestation import deviations
from gateway.audit.query import Entry
from gateway.audit.record import DecisionRecord, Feedback, OutcomeRecord, RequestFacts, Shadow
from gateway.execution import Execution
from gateway.types import SHORT_HASH_LENGTH, Decision, Mode, Signals

_BAR_WIDTH = 20
_SHOWN_SCORES = 4


def table(entries: Sequence[Entry]) -> Table:
    """One row an entry."""
    rows = Table(box=None, header_style="bold", pad_edge=False)
    rows.add_column("time", no_wrap=True)
    longest = max((len(entry.decision.decision_id) for entry in entries), default=0)
    # An id that is cut is of no use: it is there to be copied.
    rows.add_column("id", no_wrap=True, min_width=longest)
    for heading in ("caller", "domain", "rule", "decided", "executed"):
        rows.add_column(heading, overflow="ellipsis", no_wrap=True)
    rows.add_column("accepted", justify="right", no_wrap=True)
    rows.add_column("end", no_wrap=True)
    for entry in entries:
        record, top = entry.decision, entry.decision.signals.top("domain")
        cells = (
            _time(record.created_at, "%Y-%m-%d %H:%M:%S"),
            record.decision_id,
            record.caller.id,
            "-" if top is None else f"{top.value} {top.score:.2f}",
            record.decision.rule,
            record.decision.mode.value,
        )
        rows.add_row(*(Text(plain(cell)) for cell in cells), *_outcome_cells(entry))
    return rows


def _outcome_cells(entry: Entry) -> tuple[Text, Text, Text]:
    outcome = entry.outcome
    if outcome is None:
        return Text("-"), Text("-"), Text("open", style="yellow")
    execution = outcome.execution
    accepted = f"{execution.num_accepted_tokens}/{execution.num_draft_tokens}"
    end = ",".join(reason.value for reason in outcome.finish_reasons)
    if outcome.interrupted:
        end = "interrupted"
    failed = outcome.attestation == "attestation_failed"
    return (
        Text(execution.mode.value if execution.mode else "-", style="bold red" if failed else ""),
        Text(accepted),
        Text(outcome.attestation if failed else end, style="bold red" if failed else ""),
    )


def parts(entry: Entry) -> Iterator[Table | Tree | Text]:
    """All of one entry, to be printed one below the other."""
    record = entry.decision
    yield _facts(
        {
            "decision": record.decision_id,
            "request": record.request_id,
            "time": _time(record.created_at, "%Y-%m-%d %H:%M:%S.%f %z"),
            "caller": record.caller.id + (f" ({record.caller.team})" if record.caller.team else ""),
            "model": f"{record.request.model} on {record.backend}",
            "asked": _asked(entry),
            "digest": _digest(record.request),
            "policy": f"{record.decision.policy} {record.decision.policy_version}",
            "decided": f"{_decided(record.decision)}, seed {record.sampling.seed}",
            **_executed(entry),
            **_text(entry),
            **_shadow(entry.shadow),
        }
    )
    if entry.feedback:
        yield Text("\nfeedback", style="bold")
        yield _feedback(entry.feedback)
    yield Text("\nsignals", style="bold")
    yield _signals(record.signals)
    yield _seen(record.signals)
    yield _trace(record.decision)


def _digest(request: RequestFacts) -> str:
    if not request.digest_key:
        return f"sha256 {request.digest}"
    return f"hmac-sha256 {request.digest}, key {request.digest_key}"


def _asked(entry: Entry) -> str:
    request = entry.decision.request
    parts = [request.endpoint, f"{request.prompt_tokens} prompt tokens", f"n {request.n}"]
    if request.stream:
        parts.append("streamed")
    if request.has_tools:
        parts.append("with tools")
    if request.requested_mode is not None:
        parts.append(f"wants {request.requested_mode}")
    return ", ".join(parts)


def _decided(decision: Decision) -> str:
    parts = [decision.mode.value, f"verifier {decision.verifier}"]
    if decision.max_distortion is not None:
        parts.append(f"lossy, distortion at most {decision.max_distortion:g}")
    if decision.draft is not None:
        most = decision.draft.num_speculative_tokens
        parts.append(f"draft {decision.draft.source}, at most {most} tokens")
    if decision.mode is Mode.HYBRID:
        parts.append(f"first {decision.standard_first} standard")
        parts.append(f"content tokens {decision.content_tokens.value}")
        if decision.max_entropy is not None:
            parts.append(f"entropy at most {decision.max_entropy:g}")
        if decision.hybrid_fallback is not Mode.STANDARD:
            parts.append(f"{decision.hybrid_fallback.value} where it cannot be")
    if decision.forced_by is not None:
        parts.append(f"forced by {decision.forced_by}")
    if decision.deny is not None:
        parts.append(f"denied: {decision.deny}")
    return ", ".join(parts)


def _executed(entry: Entry) -> dict[str, str]:
    outcome = entry.outcome
    if outcome is None:
        return {"executed": "open: still running, or left by a crash until the next start"}
    run, times = outcome.execution, outcome.timings
    ran = "nothing" if run.mode is None else f"{run.mode.value}, verifier {run.verifier}"
    if run.verifier_class:
        spent = f", distortion {run.distortion:.3g}" if run.verifier_class == "lossy" else ""
        ran += f" ({run.verifier_class}{spent})"
    if run.fallback is not None:
        ran += f", as {run.fallback.replace('_', ' ')}"
    ending = ", ".join(reason.value for reason in outcome.finish_reasons) or "interrupted"
    first = "-" if times.first_token is None else duration(times.first_token)
    return {
        "executed": ran,
        "attestation": outcome.attestation + _witness(run),
        **_second(run),
        **_deviations(entry.decision, outcome),
        "drafting": _drafting(entry),
        "usage": f"{run.usage.prompt_tokens} prompt ({run.usage.cached_tokens} cached) + "
        f"{run.usage.completion_tokens} completion tokens in {run.num_steps} steps",
        "finished": ending + (f": {outcome.error}" if outcome.error else ""),
        "timings": f"first token {first}, total {duration(times.total)}; "
        f"classify {duration(times.classify)}, decide {duration(times.decide)}, "
        f"record {duration(times.record)}, queue {duration(run.queue_seconds)}, "
        f"prefill {duration(run.prefill_seconds)}, decode {duration(run.decode_seconds)}",
    }


def _witness(run: Execution) -> str:
    """Who counted, where that was not our own engine."""
    return "" if run.attested_by == "engine" else f", by {run.attested_by.replace('-', ' ')}"


def _text(entry: Entry) -> dict[str, str]:
    """What was captured, and who was shown it."""
    if not entry.texts:
        return {}
    parts = []
    for facts in entry.texts:
        said = f"{facts.size} bytes" if facts.text_dropped is None else facts.text_dropped
        masked = ", ".join(f"{count} {name}" for name, count in facts.masked.items())
        said += f" ({masked} masked)" if masked else ""
        parts.append(f"{facts.kind} {said}" + (", cut off" if facts.truncated else ""))
    if entry.erased:
        parts.append("erased")
    seen = [
        f"{access.by} {_time(access.added_at, '%Y-%m-%d %H:%M:%S')}" for access in entry.accesses
    ]
    return {"text": "; ".join(parts)} | ({"seen by": "; ".join(seen)} if seen else {})


def _shadow(shadow: Shadow | None) -> dict[str, str]:
    """What came of decoding the request again."""
    if shadow is None:
        return {}
    text = f"{shadow.result}, {shadow.num_tokens} tokens compared"
    if shadow.result == "dropped":
        text = f"dropped: {shadow.reason}"
    elif shadow.position is not None:
        ahead = (
            "" if shadow.margin is None else f", where standard was {shadow.margin:.3g} nats ahead"
        )
        text += f": first at token {shadow.position} of answer {shadow.answer}{ahead}"
    return {"shadow run": text}


def captured(text: Mapping[str, str]) -> Iterator[Text]:
    """Captured texts, to be printed one below the other."""
    for kind in ("prompt", "answer"):
        yield Text(f"\n{kind}", style="bold")
        found = text.get(kind)
        yield Text("not in the log", style="dim") if found is None else Text(plain(found))


def _deviations(decision: DecisionRecord, outcome: OutcomeRecord) -> dict[str, str]:
    """Why the attestation failed; worked out anew, because the records hold all it needs."""
    failed = outcome.attestation == "attestation_failed"
    return {"deviations": "; ".join(deviations(decision, outcome.execution))} if failed else {}


def _second(run: Execution) -> dict[str, str]:
    """What the backend itself found out about the request, and what followed."""
    opinion = run.opinion
    if opinion is None:
        return {}
    highest = sorted(opinion.scores.items(), key=lambda score: -score[1])[:_SHOWN_SCORES]
    text = ", ".join(f"{domain} {score:.3f}" for domain, score in highest) or "no scores"
    text += f", weights {opinion.content_hash[:SHORT_HASH_LENGTH]}"
    if opinion.error is not None:
        text += f"; {opinion.error}"
    if run.tightened_by is not None:
        text += "; tightened to standard"
        text += f", because {opinion.rule} bans what was decided" if opinion.rule else ""
    return {opinion.source: text}


def _drafting(entry: Entry) -> str:
    run = entry.outcome.execution if entry.outcome is not None else None
    if run is None or run.num_draft_tokens == 0:
        return "no draft token proposed"
    text = f"{run.num_accepted_tokens} of {run.num_draft_tokens} draft tokens accepted"
    text += f" ({run.num_accepted_tokens / run.num_draft_tokens:.0%})"
    if (length := run.mean_acceptance_length) is not None:
        text += f", mean acceptance length {length:.2f} with the bonus token"
    for source, (proposed, accepted) in sorted(run.drafts_by_source.items()):
        text += f"; {source} {accepted}/{proposed}"
    if run.first_draft_position is not None:
        text += f"; first at position {run.first_draft_position}"
    return text


def _facts(facts: dict[str, str]) -> Table:
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in facts.items():
        style = "bold red" if value == "attestation_failed" else ""
        rows.add_row(Text(name), Text(plain(value), style=style))
    return rows


def _feedback(given: Sequence[Feedback]) -> Table:
    rows = Table(box=None, show_header=False, pad_edge=False)
    for record in given:
        rows.add_row(
            _time(record.given_at, "%Y-%m-%d %H:%M:%S"),
            Text(plain(record.by)),
            Text(", ".join(record.domains) or "none of the ten"),
            Text(plain(record.note)),
            # Only the last one counts.
            style="" if record is given[-1] else "dim",
        )
    return rows


def _signals(signals: Signals) -> Table:
    rows = Table(box=None, show_header=False, pad_edge=False)
    for signal in sorted(signals.items, key=lambda s: (s.name, -s.score)):
        filled = round(max(0.0, min(1.0, signal.score)) * _BAR_WIDTH)
        cells = (
            f"{signal.name} {signal.value}",
            "█" * filled + "·" * (_BAR_WIDTH - filled),
            f"{signal.score:.3f}",
            signal.source,
        )
        rows.add_row(*(Text(plain(cell)) for cell in cells))
    return rows


def _seen(signals: Signals) -> Text:
    seen = f"{signals.scored_tokens} of {signals.total_tokens} tokens scored"
    text = Text(seen, style="yellow" if signals.truncated else "dim")
    if signals.error is not None:
        text.append(f"\n{plain(signals.error)}", style="bold red")
    return text.append("\n")


def _trace(decision: Decision) -> Tree:
    title = f"rule {decision.rule}" + (f": {decision.reason}" if decision.reason else "")
    tree = Tree(Text(plain(title), style="bold"))
    for step in decision.trace:
        mark = "✓" if step.matched else "·"
        text = f"{mark} {step.kind} {step.rule}: {step.detail}"
        tree.add(Text(plain(text), style="" if step.matched else "dim"))
    for mode, rule in decision.bans.items():
        tree.add(Text(plain(f"{mode} is banned by {rule}"), style="yellow"))
    return tree


def _time(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime(form)


def duration(seconds: float) -> str:
    """``seconds`` as people read them."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def plain(text: str) -> str:
    """``text`` with every character that a terminal could obey written as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
