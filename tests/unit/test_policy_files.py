from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.routing import files


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "house.yaml"
    path.write_text("one")
    return path


def test_the_texts_are_those_of_the_files_that_are_there(policy: Path) -> None:
    files.beside(policy, "_test").write_text("cases")
    assert files.read(policy) == {"house.yaml": "one", "house_test.yaml": "cases"}


def test_a_policy_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none.yaml")


def test_every_change_of_a_file_changes_the_fingerprint(policy: Path) -> None:
    seen = [files.fingerprint(policy)]
    for change in (
        lambda: policy.write_text("two"),
        lambda: files.beside(policy, "_test").write_text(""),
        lambda: files.beside(policy, "_proof").write_text("p"),
        lambda: files.beside(policy, "_test").unlink(),
        lambda: policy.unlink(),
        lambda: policy.mkdir(),
    ):
        change()
        seen.append(files.fingerprint(policy))
    assert len(set(seen)) == len(seen)


def test_neither_a_touch_nor_a_rewrite_with_the_same_bytes_is_a_change(policy: Path) -> None:
    before = files.fingerprint(policy)
    os.utime(policy, (1, 1))
    policy.write_text("one")
    assert files.fingerprint(policy) == before


def test_a_swapped_symbolic_link_is_a_change_even_with_equal_times_and_sizes(
    tmp_path: Path,
) -> None:
    for name, text in (("a", "one"), ("b", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.yaml").write_text(text)
        os.utime(tmp_path / name / "p.yaml", (1, 1))
    link = tmp_path / "now"
    link.symlink_to("a")
    before = files.fingerprint(link / "p.yaml")
    link.unlink()
    link.symlink_to("b")
    assert files.fingerprint(link / "p.yaml") != before


def test_writing_replaces_removes_and_leaves_nothing_else(policy: Path) -> None:
    files.beside(policy, "_test").write_text("old cases")
    policy.chmod(0o640)
    files.write(policy, {"house.yaml": "two", "house_proof.yaml": "proofs"})

    assert files.read(policy) == {"house.yaml": "two", "house_proof.yaml": "proofs"}
    assert policy.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(policy.parent)) == ["house.yaml", "house_proof.yaml"]


def test_writing_through_a_symbolic_link_keeps_it(tmp_path: Path, policy: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(policy)
    files.write(link, {"link.yaml": "two"})
    assert link.is_symlink()
    assert policy.read_text() == "two"


def test_what_cannot_be_written_changes_nothing(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(policy, {"house.yaml": "two"})
    assert files.read(policy) == {"house.yaml": "one"}
    assert [name for name in os.listdir(policy.parent) if not name.startswith(".")] == [
        "house.yaml"
    ]
