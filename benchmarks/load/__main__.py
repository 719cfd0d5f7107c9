"""What the gateway adds: keys, classifying, the policy and two durable records, per request.

The same scripted backend answers at once, so all that is measured is the gateway. ``bare`` is the
same server without keys, classifiers and rules. With ``--litellm VENV`` LiteLLM's proxy is measured
too, before the bare gateway as its upstream, whose own time is in its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.environment import describe
from benchmarks.load import clients, servers
from benchmarks.load.servers import KEY, Server

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    """Measure, print and keep the figures."""
    options = _options()
    console = Console(stderr=True)
    found: dict[str, Any] = {}
    for name in ("bare", "gateway", *(["litellm"] if options.litellm else [])):
        with ExitStack() as stack, console.status(f"measuring {name}"):
            server, key = _start(name, options, stack)
            found[name] = asyncio.run(_measure(server, key, options))
    report = {"environment": describe("cpu"), "servers": found}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if options.json else table(found))
    return 1 if any(figures["streams"]["failed"] for figures in found.values()) else 0


def _start(name: str, options: argparse.Namespace, stack: ExitStack) -> tuple[Server, str]:
    if name == "litellm":
        upstream = stack.enter_context(servers.gateway(bare=True))
        return stack.enter_context(servers.litellm(options.litellm, upstream.url)), f"sk-{KEY}"
    return stack.enter_context(servers.gateway(bare=name == "bare")), KEY


async def _measure(server: Server, key: str, options: argparse.Namespace) -> dict[str, Any]:
    latency = await clients.one_by_one(server, key, options.requests)
    rate = await clients.at_once(server, key, options.clients, options.seconds)
    streams = await clients.streams(server, key, options.streams, options.seconds)
    return {"latency": asdict(latency), "rate": asdict(rate), "streams": asdict(streams)}


def table(found: Mapping[str, Any]) -> str:
    """The figures as a Markdown table."""
    head = (
        "| server | p50 (ms) | p99 (ms) | requests/s | CPU (ms) a request | streams | answers "
        "| failed | /healthz p50, worst (ms) | memory (MB) |"
    )
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for name, figures in found.items():
        latency, rate, streams = figures["latency"], figures["rate"], figures["streams"]
        cells = (
            name,
            f"{1e3 * latency['p50']:.2f}",
            f"{1e3 * latency['p99']:.2f}",
            f"{rate['per_second']:.0f}",
            f"{1e3 * rate['cpu_seconds_per_request']:.2f}",
            f"{streams['streams']}",
            f"{streams['answers']}",
            f"{streams['failed']}",
            f"{1e3 * streams['health_p50']:.1f}, {1e3 * streams['health_worst']:.1f}",
            f"{streams['memory_mb_before']:.0f} → {streams['memory_mb_after']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--requests", type=int, default=500, help="one after another")
    parser.add_argument("--clients", type=int, default=8, help="at once, for the rate")
    parser.add_argument("--streams", type=int, default=64, help="side by side")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the two")
    parser.add_argument("--litellm", type=Path, metavar="VENV", help="measure its proxy too")
    parser.add_argument("--out", type=Path, default=RESULTS / "load.json")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
