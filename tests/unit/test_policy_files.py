from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.routing import files


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "house.yaml"
    path.write_text("one")
    return path


def test_the_texts_are_those_of_the_files_that_are_there(policy: Path) -> None:
    files.beside(policy, "_test").write_text("cases")
    assert files.read(policy).contents == {"house.yaml": b"one", "house_test.yaml": b"cases"}


def test_of_a_policy_that_is_not_there_nothing_is_read(tmp_path: Path) -> None:
    assert files.read(tmp_path / "none.yaml").contents == {}


SET = "version: 1\nname: acme\npolicies: [sub/base.yaml]\n"


def test_of_a_set_only_what_it_lists_and_its_companions_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "base.yaml").write_text("base")
    folder.mkdir()
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    for name, text in (("set.yaml", SET), ("set_test.yaml", "cases"), ("other.yaml", "[")):
        (folder / name).write_text(text)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.yaml")).write_text("x: 1")

    there = files.read(folder)
    assert sorted(there.contents) == ["set.yaml", "set_test.yaml", "sub/base.yaml"]
    (folder / "sub" / "base.yaml").write_text("new")
    assert files.fingerprint(folder) != there.fingerprint


def test_a_name_that_is_no_utf_8_has_a_fingerprint(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml"))
    path.write_text("one")
    before = files.fingerprint(path)
    path.write_text("two")
    assert files.fingerprint(path) != before


def test_what_is_made_is_made_of_files_of_one_generation(policy: Path) -> None:
    tests = files.beside(policy, "_test")
    attempts: list[str] = []

    def make() -> str:
        first = policy.read_text()
        if not attempts:  # both files are replaced between two reads
            policy.write_text("two")
            tests.write_text("of two")
        attempts.append(first)
        return f"{first}, {tests.read_text()}"

    made, there = files.settled(policy, make)
    assert (made, attempts) == ("two, of two", ["one", "two"])
    assert there.contents == {"house.yaml": b"two", "house_test.yaml": b"of two"}


def test_files_that_do_not_come_to_rest_are_not_read(policy: Path) -> None:
    def make() -> None:
        policy.write_text(policy.read_text() + "!")

    with pytest.raises(ConfigError, match="changed while they were read"):
        files.settled(policy, make)


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
    files.write(policy, {"house.yaml": b"two", "house_proof.yaml": b"proofs"})

    assert files.read(policy).contents == {"house.yaml": b"two", "house_proof.yaml": b"proofs"}
    assert policy.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(policy.parent)) == ["house.yaml", "house_proof.yaml"]


def test_writing_through_a_symbolic_link_keeps_it(tmp_path: Path, policy: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(policy)
    files.write(link, {"link.yaml": b"two"})
    assert link.is_symlink()
    assert policy.read_text() == "two"


def test_what_cannot_be_written_changes_nothing(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(policy, {"house.yaml": b"two"})
    assert files.read(policy).contents == {"house.yaml": b"one"}
    assert [name for name in os.listdir(policy.parent) if not name.startswith(".")] == [
        "house.yaml"
    ]
