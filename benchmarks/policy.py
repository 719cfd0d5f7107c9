"""How long deciding takes: `decide` on policies of 1 to 300 rules, in interleaved rounds.

Each round asks every policy once more, so that a slow moment of the machine meets all of them alike;
what is reported is the median over the rounds of the mean of a round.

    python benchmarks/policy.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import UTC, datetime

from gateway.routing.decide import decide
from gateway.routing.policy import Policy, parse_policy
from gateway.routing.testing import given_signals
from gateway.types import DOMAINS, Caller, ChatRequest, Message

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
TEXT = "Write a Python function that parses a CSV file and returns the rows as dictionaries. " * 20
REQUEST = ChatRequest("small", (Message("user", TEXT),), headers={"x-team": "red"})
SIGNALS = given_signals({"code": 0.55, "medical": 0.02}, language="en")
CONDITIONS = (
    "domain: {{is: {domain}, min_probability: 0.{digit}5}}",
    "all: [{{domain: {{is: {domain}, min_probability: 0.9}}}}, {{has_context: true}}]",
    "any: [{{language: {{is: de}}}}, {{not: {{has_context: false}}}}]",
    "domain: {{in: [{domain}, legal], min_probability: 0.9}}",
    "team: {{is: team{digit}}}",
    "model: {{in: [large, 'llama-{digit}*']}}",
    "header: {{name: X-Team, is: blue{digit}}}",
    "min_prompt_tokens: {digit}000",
    "time: {{between: 22:00-06:00, timezone: Europe/Berlin}}",
    "domain: {{is: {domain}}}",
)
"""None of them holds, so that every rule is looked at: the slowest case."""


def policy(rules: int) -> Policy:
    """A policy of ``rules`` rules, a third of them bans; no rule decides."""
    lines = ["version: 1", f"name: rules-{rules}", "rules:"]
    for i in range(rules):
        domain = [name for name in DOMAINS if name not in ("code", "legal")][i % 8]
        when = CONDITIONS[i % len(CONDITIONS)].format(domain=domain, digit=i % 9 + 1)
        action = "ban: [speculative, hybrid]" if i % 3 == 0 else "decide: {mode: speculative}"
        lines.append(f"  - {{id: r{i}, when: {{{when}}}, {action}}}")
    return parse_policy(
        "\n".join(lines), "benchmark", verifiers=("coupled",), draft_sources=("suffix",)
    )


def seconds(subject: Policy, calls: int) -> float:
    """The mean of some calls, in seconds of the thread's own: other processes do not count."""
    started = time.thread_time()
    for _ in range(calls):
        decide(subject, SIGNALS, REQUEST, Caller("ann", "red"), prompt_tokens=500, now=NOW)
    return (time.thread_time() - started) / calls


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    policies = [policy(rules) for rules in (1, 10, 30, 100, 300)]
    measured: dict[str, list[float]] = {subject.name: [] for subject in policies}
    for subject in policies:
        seconds(subject, 200)
    for _ in range(rounds):
        for subject in policies:
            measured[subject.name].append(seconds(subject, 50))
    print("| rules | median µs | fastest µs |")
    print("|---|---|---|")
    for subject in policies:
        times = [1e6 * value for value in measured[subject.name]]
        print(f"| {len(subject.rules)} | {statistics.median(times):.1f} | {min(times):.1f} |")


if __name__ == "__main__":
    main()
