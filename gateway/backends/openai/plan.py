"""`plan`: which arm answers a request, and why not the one that was decided for. Pure.

The way goes to the safer arm only: nothing that was decided standard is ever planned elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.backends.openai.features import PARAMS, needs
from gateway.backends.openai.replica import SPECULATIVE, STANDARD, Arm
from gateway.errors import UnsupportedParameter
from gateway.types import Decision, Job, Mode, Sampling


class Plan(msgspec.Struct, frozen=True):
    """What is to run."""

    mode: Mode
    fallback: str | None = None
    """Why it is another mode than was decided."""


def plan(job: Job, arms: Mapping[str, Arm]) -> Plan:
    """Raises UnsupportedParameter for what no arm honours that may answer."""
    wanted = needs(job.request, job.sampling)
    standard, fast = arms[STANDARD], arms.get(SPECULATIVE)
    chosen = _wish(job, standard, fast, wanted)
    uses_standard = chosen.mode is not Mode.SPECULATIVE
    if uses_standard and (missing := sorted(wanted - standard.honours)):
        param = PARAMS.get(missing[0], missing[0])
        raise UnsupportedParameter(
            f"This model's {standard.name} servers do not honour {param!r}, and no other may answer "
            "this request; leave it out.",
            param=param,
        )
    return chosen


def _wish(job: Job, standard: Arm, fast: Arm | None, wanted: frozenset[str]) -> Plan:
    mode = job.decision.mode
    if mode is Mode.STANDARD:
        return Plan(mode)
    if fast is None:
        return Plan(Mode.STANDARD, "no_arm")
    if not wanted <= fast.honours:
        return Plan(Mode.STANDARD, "unsupported")
    if not fast.usable:
        return Plan(Mode.STANDARD, "arm_down")
    # The standard arm goes on with the answer too, where the other one fails by then.
    if mode is Mode.HYBRID and not (continues(job, fast) and continues(job, standard)):
        return Plan(hybrid_fallback(job.decision), "no_continuation")
    return Plan(mode)


def hybrid_fallback(decision: Decision) -> Mode:
    """The mode in place of a hybrid one that cannot be had; never one that is banned."""
    if decision.hybrid_fallback is Mode.SPECULATIVE and Mode.SPECULATIVE.value in decision.bans:
        return Mode.STANDARD
    return decision.hybrid_fallback


def continues(job: Job, arm: Arm) -> bool:
    """Whether another arm can go on with an answer just as one arm would have gone on with it.

    It reads what is there as prompt: so there must be text to continue, and nothing may depend on
    where the answer began. Gates that look at each token no server has.
    """
    request, sampling, decision = job.request, job.sampling, job.decision
    gated = decision.content_tokens is Mode.STANDARD or decision.max_entropy is not None
    if gated or not decision.standard_first or request.n > 1 or _looks_back(sampling):
        return False
    if request.grammar is not None or request.tools:
        return False
    if request.prompt is not None:
        return isinstance(request.prompt, str)
    return "continuation" in arm.honours


def _looks_back(sampling: Sampling) -> bool:
    """Whether what comes next depends on the answer's beginning in another way than as text."""
    return bool(
        sampling.stop
        or sampling.min_tokens
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )
