"""What it takes to read a large log: pages, filters, a search, statistics, and the verification.

The log is filled first, signed, through the store that a gateway writes with. Readings alternate;
medians count. ``python -m benchmarks.log_reading --requests 100000``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.audit_log import KEYS, decision, outcome
from benchmarks.keeping import keep
from gateway.audit.filters import Filters
from gateway.audit.holdings import open_holdings
from gateway.audit.query import DecisionReader
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify
from gateway.types import Caller, Mode

RESULTS = Path(__file__).parent / "results" / "log-reading.json"
BATCH = 500
CALLERS = 20


def main() -> int:
    """Fill, measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("."), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        found = asyncio.run(_measure(Path(name).resolve() / "log.db", options))
    # Not before: it imports torch, whose threads and memory have no part in this.
    from benchmarks.environment import describe

    report = {"environment": describe("cpu"), "requests": options.requests, "seconds": found}
    keep(RESULTS, report, table(report))
    print(json.dumps(report) if options.json else table(report))
    return 0


def table(report: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    where = report["environment"]
    lines = [
        f"{where['processor']}, {where['cores']} cores, {where['date']}; "
        f"{report['requests']:,} requests in SQLite.",
        "",
        "| reading | median (ms) |",
        "|---|---:|",
    ]
    lines += [f"| {name} | {1000 * took:,.1f} |" for name, took in report["seconds"].items()]
    return "\n".join(lines)


async def _measure(path: Path, options: argparse.Namespace) -> dict[str, float]:
    url = f"sqlite:///{path}"
    started = time.time() - options.requests
    with Progress(console=Console(stderr=True)) as progress:
        filling = progress.add_task("filling", total=options.requests)
        store = await DecisionStore.open(url, keys=KEYS)
        for first in range(0, options.requests, BATCH):
            last = min(first + BATCH, options.requests)
            await asyncio.gather(*(_request(store, n, started + n) for n in range(first, last)))
            progress.update(filling, completed=last)
        await store.aclose()
        reader = await DecisionReader.open(url)
        middle = await _deep(reader, options.requests // 2)
        day = Filters(since=started + options.requests / 2, until=started + options.requests)
        readings: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "first page of 50": reader.list,
            "page of 50 in the middle": lambda: reader.list(cursor=middle),
            "page of one caller": lambda: reader.list(Filters(caller="caller-7")),
            "page of a filter that nothing meets": lambda: reader.list(Filters(rule="none")),
            "search for a text": lambda: reader.list(Filters(text="caller-1")),
            "one decision": lambda: reader.get(f"dec_{options.requests // 2:032x}"),
            "statistics by mode and rule": reader.stats,
            "statistics of half of the time": lambda: reader.stats(day, by=("domain", "mode")),
        }
        took: dict[str, list[float]] = {name: [] for name in readings}
        reading = progress.add_task("reading", total=options.rounds)
        for _ in range(options.rounds):
            for name, read in readings.items():
                at = time.perf_counter()
                await read()
                took[name].append(time.perf_counter() - at)
            progress.advance(reading)
        await reader.aclose()
        found = {name: statistics.median(times) for name, times in took.items()}
        found["verification of all"] = await asyncio.to_thread(_verify, url)
    return found


async def _request(store: DecisionStore, number: int, at: float) -> None:
    caller = Caller(id=f"caller-{number % CALLERS}", team=f"team-{number % 3}")
    record = decision(number)
    mode = list(Mode)[number % len(Mode)]
    chosen = msgspec.structs.replace(record.decision, mode=mode, rule=f"rule-{number % 12}")
    await store.append_decision(
        msgspec.structs.replace(record, created_at=at, caller=caller, decision=chosen)
    )
    await store.append_outcome(msgspec.structs.replace(outcome(number), finished_at=at + 1))


async def _deep(reader: DecisionReader, until: int) -> str | None:
    """The cursor after so many entries."""
    cursor, seen = None, 0
    while seen < until:
        page = await reader.list(limit=100, cursor=cursor)
        cursor, seen = page.next_cursor, seen + len(page.entries)
    return cursor


def _verify(url: str) -> float:
    at = time.perf_counter()
    with open_holdings(url) as holdings:
        report = verify(holdings, KEYS)
    if not report.verified:
        raise RuntimeError(f"the log does not verify: {report.faults[0]}")
    return time.perf_counter() - at


if __name__ == "__main__":
    raise SystemExit(main())
