"""What durability and the chain cost: durable requests a second, and the time they add to each.

A request is two records, the decision and the outcome, each on the disk before its append returns:
SQLite with a write-ahead log and ``synchronous=FULL``, so that a commit has waited for an fsync.
Every setting runs in a fresh database beside the others; rounds alternate, medians count.

``python -m benchmarks.audit_log`` prints a table, and with ``--out`` writes JSON and the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import sqlalchemy as sa

from gateway.audit import store as store_module
from gateway.audit.anchor import Anchor
from gateway.audit.keys import Key, Keyring
from gateway.audit.ledger import Ledger
from gateway.audit.record import DecisionRecord, OutcomeRecord, RequestFacts, Timings
from gateway.audit.schema import LOGGED, Row
from gateway.audit.store import DecisionStore
from gateway.execution import Execution
from gateway.types import (
    Caller,
    Decision,
    FinishReason,
    Mode,
    RuleTrace,
    Sampling,
    Signal,
    Signals,
    Usage,
)

KEYS = Keyring([Key("benchmark", b"k" * 32)])
SETTINGS = ("no chain", "unsigned", "signed", "signed, with an anchor")
CLIENTS = 64


class _Unchained(Ledger):
    """Rows without links: what the log would be without chains."""

    def append(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        for logged in LOGGED.values():
            values = [row.values for row in rows if row.table is logged.table and row.make is None]
            if values:
                connection.execute(sa.insert(logged.table), values)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000, help="a round, at full speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="*", default=[50, 200, 500])
    parser.add_argument("--seconds", type=float, default=5.0, help="at each rate")
    parser.add_argument("--folder", type=Path, default=Path("."), help="on the disk to measure")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    options = parser.parse_args()
    results = _measure(options)
    table = "\n".join(_table(results))
    print(table)
    if options.out is not None:
        options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table + "\n")


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name).resolve()
        fsync = _fsync_seconds(folder)
        speeds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
        for number in range(options.rounds):
            for setting in SETTINGS:
                place = folder / f"{setting}-{number}.db"
                speed = asyncio.run(_full_speed(setting, place, options.requests))
                speeds[setting].append(speed)
        loads = {
            setting: {
                str(rate): asyncio.run(
                    _at_rate(setting, folder / f"{setting}-{rate}.db", rate, options.seconds)
                )
                for rate in options.rates
            }
            for setting in ("no chain", "signed, with an anchor")
        }
    # Not before: it imports torch, whose threads and memory have no part in this.
    from benchmarks.environment import describe

    shown = decision(0), outcome(0)
    return {
        "environment": describe("cpu"),
        "durable": "SQLite, write-ahead log, synchronous=FULL: an append returns after an fsync",
        "record_bytes": [len(msgspec.json.encode(record)) for record in shown],
        "fsync_ms": fsync * 1000,
        "clients": CLIENTS,
        "requests": options.requests,
        "rounds": options.rounds,
        "requests_per_second": {name: statistics.median(found) for name, found in speeds.items()},
        "rounds_per_second": speeds,
        "added_ms": loads,
    }


async def _full_speed(setting: str, path: Path, requests: int) -> float:
    """Requests a second, with as many clients as there are, one request after the other."""
    numbers = iter(range(requests))
    records = [(decision(number), outcome(number)) for number in range(requests)]
    with _setting(setting):
        store = await _open(setting, path)

        async def ask() -> None:
            for number in numbers:
                decision, outcome = records[number]
                await store.append_decision(decision)
                await store.append_outcome(outcome)

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(CLIENTS)))
        elapsed = time.perf_counter() - started
        await store.aclose()
    return requests / elapsed


async def _at_rate(setting: str, path: Path, rate: int, seconds: float) -> dict[str, float]:
    """Percentiles, in ms, of what an append takes while so many requests a second come."""
    first: list[float] = []
    last: list[float] = []
    with _setting(setting):
        store = await _open(setting, path)

        async def ask(number: int) -> None:
            first.append(await _timed(lambda: store.append_decision(decision(number))))
            last.append(await _timed(lambda: store.append_outcome(outcome(number))))

        started = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(number)))
        await asyncio.gather(*tasks)
        await store.aclose()
    return {
        "decision_p50": _percentile(first, 50),
        "decision_p99": _percentile(first, 99),
        "outcome_p50": _percentile(last, 50),
        "outcome_p99": _percentile(last, 99),
    }


async def _timed(append: Callable[[], Any]) -> float:
    started = time.perf_counter()
    await append()
    return (time.perf_counter() - started) * 1000


@contextmanager
def _setting(setting: str) -> Iterator[None]:
    ledger = _Unchained if setting == "no chain" else Ledger
    with mock.patch.object(store_module, "Ledger", ledger):
        yield


async def _open(setting: str, path: Path) -> DecisionStore:
    return await DecisionStore.open(
        f"sqlite:///{path}",
        keys=KEYS if setting.startswith("signed") else None,
        anchor=Anchor(path.with_suffix(".anchor")) if setting.endswith("anchor") else None,
    )


def _fsync_seconds(folder: Path) -> float:
    """What the disk takes to keep a page, at the median."""
    times = []
    with (folder / "page").open("wb") as file:
        for _ in range(200):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def decision(number: int) -> DecisionRecord:
    """As large as one of the shipped policy."""
    trace = tuple(
        RuleTrace(f"rule-{n}", "ban", False, f"domain medical 0.02 < 0.{n:02d}") for n in range(12)
    )
    domains = ("code", "medical", "legal", "finance", "general_chat", "creative_writing")
    return DecisionRecord(
        decision_id=f"dec_{number:032x}",
        request_id=f"req_{number:032x}",
        created_at=time.time(),
        caller=Caller(id="ada", team="tools"),
        request=RequestFacts(
            endpoint="chat.completions",
            model="small",
            stream=True,
            n=1,
            prompt_tokens=120,
            digest="0" * 64,
            has_tools=False,
            response_format="text",
            requested_mode=None,
        ),
        signals=Signals(
            items=tuple(Signal("domain", domain, 0.123456789, "domain") for domain in domains),
            scored_tokens=120,
            total_tokens=120,
            classifiers={"domain": "c" * 64, "language": "d" * 64},
        ),
        decision=Decision(
            mode=Mode.STANDARD,
            rule="default",
            policy="default",
            policy_hash="f" * 64,
            trace=trace,
        ),
        sampling=Sampling(seed=number),
        backend="local",
    )


def outcome(number: int) -> OutcomeRecord:
    """How that request ended."""
    return OutcomeRecord(
        decision_id=f"dec_{number:032x}",
        finished_at=time.time(),
        finish_reasons=(FinishReason.STOP,),
        execution=Execution(
            backend="local",
            model="small",
            mode=Mode.STANDARD,
            verifier="coupled",
            verifier_class="exact",
            usage=Usage(120, 200),
            num_steps=200,
        ),
        timings=Timings(classify=0.001, record=0.002, first_token=0.05, total=0.4),
        attestation="ok",
    )


def _table(results: dict[str, Any]) -> Iterator[str]:
    place = results["environment"]
    yield (
        f"{place['processor']}, {place['cores']} cores, fsync {results['fsync_ms']:.2f} ms, "
        f"commit {place['commit']}, {place['date']}."
    )
    yield f"{results['clients']} requests at once, {results['rounds']} rounds, medians:"
    yield ""
    yield "| log | durable requests/s |"
    yield "|---|---:|"
    for setting, speed in results["requests_per_second"].items():
        yield f"| {setting} | {speed:,.0f} |"
    yield ""
    yield "Milliseconds that an append takes while so many requests come:"
    yield ""
    yield "| log | requests/s | decision p50 | p99 | outcome p50 | p99 |"
    yield "|---|---:|---:|---:|---:|---:|"
    for setting, loads in results["added_ms"].items():
        for rate, found in loads.items():
            figures = " | ".join(f"{found[name]:.2f}" for name in found)
            yield f"| {setting} | {rate} | {figures} |"


if __name__ == "__main__":
    main()
