"""Kills a real gateway under load, again and again, and looks at what it leaves.

``python -m tests.faults.kills 200`` runs it by itself; the tests kill a few times.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import sqlalchemy as sa

from gateway.audit import database
from gateway.audit.anchor import read_anchor
from gateway.audit.findings import Report
from gateway.audit.holdings import DatabaseHoldings
from gateway.audit.keys import keyring
from gateway.audit.schema import decisions, outcomes
from gateway.audit.verification import verify

SECRET = "k" * 64
CLIENTS = 16
POLICY = "version: 1\nname: kills\nrules: []\n"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "Is anybody there?"}]}


class Remains(NamedTuple):
    """What all the kills left."""

    answered: int
    """Requests whose answer was whole at the client."""
    lost: list[str]
    """Those of them without a decision, or without an outcome after the next start."""
    interrupted: int
    """Requests that were closed as interrupted by the next start."""
    still_open: int
    report: Report


class Killer:
    """A gateway that is killed, on one log."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self._folder = folder
        self._url = url
        self._random = random.Random(seed)
        self._answered: set[str] = set()
        (folder / "policy.yaml").write_text(POLICY)
        config = {
            "backends": {
                "demo": {
                    "type": "scripted",
                    "options": {
                        "replies": ["One two three four five."],
                        "chunk_seconds": 0.01,
                        "max_running": CLIENTS,
                    },
                }
            },
            "policy": "policy.yaml",
            "classifiers": [],
            "audit": {
                "url": url,
                "anchor": "anchor.jsonl",
                "checkpoint_rows": 50,
                "checkpoint_seconds": 0.2,
            },
            "log": {"level": "error"},
        }
        (folder / "gateway.yaml").write_text(json.dumps(config))

    async def run(self, kills: int) -> Remains:
        """Kill so many times, then start once more and look."""
        for number in range(kills):
            await self._live(self._random.uniform(0.0, 0.6), signal.SIGKILL)
            sys.stderr.write(f"{number + 1} kills, {len(self._answered)} answered\n")
        await self._live(0.2, signal.SIGTERM)
        return await asyncio.to_thread(self._look)

    async def _live(self, seconds: float, end: signal.Signals) -> None:
        """One life of the gateway: it starts, answers for ``seconds``, and gets a signal."""
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("draftgate"),
            *("serve", "--config", "gateway.yaml", "--port", "0"),
            cwd=self._folder,
            env={
                "DRAFTGATE_AUDIT_KEY": SECRET,
                "HOME": str(self._folder),
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        first = (await process.stdout.readline()).decode()
        found = re.search(r"http://\S+", first)
        assert found is not None, first
        # Without certificates to load: making a client takes longer than most lives.
        async with httpx.AsyncClient(verify=False, timeout=5, base_url=found.group()) as client:
            before = len(self._answered)
            asking = [asyncio.create_task(self._ask(client, n % 2 == 0)) for n in range(CLIENTS)]
            # However slow the machine is, it is under load when it dies.
            while len(self._answered) == before and not all(task.done() for task in asking):
                await asyncio.wait(asking, timeout=0.01)
            await asyncio.sleep(seconds)
            process.send_signal(end)
            await process.communicate()
            await asyncio.gather(*asking)

    async def _ask(self, client: httpx.AsyncClient, stream: bool) -> None:
        """Ask until nobody answers; note every answer that came whole."""
        while True:
            try:
                answer = await client.post("/v1/chat/completions", json={**BODY, "stream": stream})
            except httpx.HTTPError:
                return
            whole = answer.text.rstrip().endswith("[DONE]" if stream else "}")
            if answer.status_code == 200 and whole:
                self._answered.add(answer.headers["x-draftgate-decision-id"])

    def _look(self) -> Remains:
        engine = database.connect_reader(database.locate(self._url), 30.0)
        with engine.connect() as connection:
            decided = set(connection.scalars(sa.select(decisions.c.decision_id)))
            ended = dict(
                connection.execute(sa.select(outcomes.c.decision_id, outcomes.c.attestation)).all()
            )
            report = verify(
                DatabaseHoldings(connection),
                keyring([("", SECRET.encode())]),
                anchor=read_anchor(self._folder / "anchor.jsonl"),
            )
        engine.dispose()
        return Remains(
            answered=len(self._answered),
            lost=sorted(self._answered - (decided & set(ended))),
            interrupted=sum(state == "unknown" for state in ended.values()),
            still_open=len(decided - set(ended)),
            report=report,
        )


def main() -> None:
    """Print what so many kills left, as JSON; exit with 1 if anything was lost."""
    kills = int(sys.argv[1])
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{folder / 'decisions.db'}"
        remains = asyncio.run(Killer(folder, url, seed=kills).run(kills))
    found = {"kills": kills, "seconds": time.monotonic() - started, **remains._asdict()}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    if remains.lost or remains.still_open or not remains.report.verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
