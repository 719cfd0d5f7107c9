"""A disk that is full, as a limit on the size of files makes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILL = """
import asyncio, resource, signal, sys
from gateway.audit.keys import Key, Keyring
from gateway.audit.anchor import Anchor, read_anchor
from gateway.audit.holdings import open_holdings
from gateway.audit import database
from gateway.audit.store import DecisionStore
from gateway.audit.verification import verify
from gateway.errors import AuditUnavailable
from pathlib import Path
from tests.records import decided, outcome_record

KEYS = Keyring([Key("k", b"k" * 32)])

async def main(url, anchor):
    store = await DecisionStore.open(url, keys=KEYS, anchor=Anchor(Path(anchor)))
    # What a full disk does to a write, this does too, without the signal that comes with it.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    acknowledged = []
    for number in range(100):
        try:
            await store.append_decision(decided(number, reason="x" * 100_000))
        except AuditUnavailable as error:
            print("refused", error.message)
            break
        acknowledged.append(number)
    # The decisions that were taken could not be ended either; then there is room again.
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for number in acknowledged:
        await store.append_outcome(outcome_record(number))
    await store.append_decision(decided(200, reason="x" * 100_000))
    await store.append_outcome(outcome_record(200))
    await store.aclose()
    with open_holdings(url) as holdings:
        report = verify(holdings, KEYS, anchor=read_anchor(Path(anchor)))
    assert report.verified, report.faults
    assert 0 < len(acknowledged) < 100
    assert report.records["decisions"] == report.records["outcomes"] == len(acknowledged) + 1

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_full_disk_refuses_records_and_leaves_a_chain_that_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'decisions.db'}"
    done = subprocess.run(
        [sys.executable, "-c", FILL, url, str(tmp_path / "anchor.jsonl")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "refused the decision log cannot be written: " in done.stdout
