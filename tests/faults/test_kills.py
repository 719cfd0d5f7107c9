"""kill -9 under load: a few times here, two hundred times with ``python -m tests.faults.kills 200``."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kills import Killer


async def test_every_answered_request_has_both_records_and_the_chain_verifies(
    tmp_path: Path,
) -> None:
    remains = await Killer(tmp_path, f"sqlite:///{tmp_path / 'decisions.db'}", seed=1).run(2)

    assert remains.answered > 0
    assert (remains.lost, remains.still_open) == ([], 0)
    assert remains.report.verified, remains.report.faults
    assert remains.report.anchored >= 3
