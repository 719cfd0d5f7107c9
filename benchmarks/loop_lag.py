"""How late an event loop runs while the engine decodes beside it, by how long idle threads spin.

OpenMP's threads wait for the next operation by spinning, which is quick and takes the core from
everybody else. Each setting runs in a process of its own, because OpenMP reads it once. With
``--busy`` another process computes on one core all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoders import Engine

HERE = Path(__file__).parent
TICK_SECONDS = 0.005
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}
BUSY = "while True: sum(range(100000))"


def main() -> None:
    """Print one table for a quiet machine and, with ``--busy``, one with a second process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(_measure(options.model, options.seconds))))
        return
    print("| setting | second process | rows | tokens/s | lag p50 | p99 | max (ms) |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for busy in (False, True) if options.busy else (False,):
        for name in options.settings:
            for row in _child(SETTINGS[name], options, busy):
                rows, rate, *lags = row
                shown = " | ".join(f"{1e3 * lag:.1f}" for lag in lags)
                print(f"| {name} | {'yes' if busy else 'no'} | {rows} | {rate:.1f} | {shown} |")
                sys.stdout.flush()


def _child(
    setting: dict[str, str], options: argparse.Namespace, busy: bool
) -> list[tuple[int, float, float, float, float]]:
    environment = os.environ | setting
    command = [sys.executable, __file__, "--child"]
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        child = subprocess.run(
            [*command, "--model", options.model, "--seconds", str(options.seconds)],
            env=environment,
            cwd=HERE.parent,
            check=True,
            capture_output=True,
            text=True,
        )
    finally:
        if other is not None:
            other.kill()
            other.wait()
    rows: list[tuple[int, float, float, float, float]] = json.loads(child.stdout.splitlines()[-1])
    return rows


async def _measure(model: str, seconds: float) -> list[tuple[int, float, float, float, float]]:
    """(rows, tokens per second, lag's median, 99th percentile and maximum in seconds)."""
    from decoders import Engine, Request, SamplingParams, Standard, load

    loaded = load(model, device="cpu", max_length=2048)
    engine = Engine(loaded.model, loaded.tokenizer)
    token_ids = loaded.tokenizer.encode("The event loop runs while")
    results = []
    for rows in (1, 8):
        params = SamplingParams(temperature=1.0, seed=1, max_tokens=2000, stop=())
        tickets = engine.submit([Request(token_ids, params, Standard()) for _ in range(rows)])
        done = threading.Event()
        thread = threading.Thread(target=_decode, args=(engine, done), daemon=True)
        thread.start()
        await asyncio.sleep(1.0)
        before = sum(ticket.sequence.num_output_tokens for ticket in tickets)
        start = time.perf_counter()
        lags = []
        while time.perf_counter() - start < seconds:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            lags.append(time.perf_counter() - due)
        elapsed = time.perf_counter() - start
        after = sum(ticket.sequence.num_output_tokens for ticket in tickets)
        done.set()
        thread.join()
        for ticket in tickets:
            ticket.cancel()
        engine.step()
        lags.sort()
        tail = lags[int(0.99 * (len(lags) - 1))]
        results.append((rows, (after - before) / elapsed, statistics.median(lags), tail, lags[-1]))
    return results


def _decode(engine: Engine, done: threading.Event) -> None:
    while not done.is_set() and engine.step():
        pass


if __name__ == "__main__":
    main()
