from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import plot, report, runs
from benchmarks.measure import Answer, Arm, Block, Task, blocks, choose, decode_block, measure
from benchmarks.prompts import GROUPS, Prompt, PromptError, read, select
from benchmarks.runs import (
    GENERATE,
    LOOKUP,
    SPECULATIVE,
    STANDARD,
    Measurement,
    Run,
    Throughput,
)
from benchmarks.summary import ALL, exclusions, figures, rates, why_not
from gateway.experiments.guard import Guard
from gateway.experiments.loops import is_loop

OWN = Path("benchmarks/prompts.jsonl")
TEXT = list(range(100, 160))


# ---- loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token_ids", "loop"),
    [
        ([], False),
        ([1], False),
        (TEXT, False),
        ([1] * 23, False),
        ([1] * 24, True),
        (TEXT + [1] * 12, False),
        (TEXT + [1] * 24, True),
        (TEXT[:7] * 4, True),
        (TEXT[:7] * 3, False),
        (TEXT[:8] * 3, True),
        ([*TEXT, *range(20), *range(20)], False),
        ([*TEXT, *range(20), *range(20), *range(20)], True),
        (list(range(32)) * 3, True),
        (list(range(33)) * 3, False),
        # The last repeat is cut off.
        ([*TEXT[:5], *range(9), *range(9), *range(9), 0, 1], True),
        # Left again: a table's rule in a long answer is no loop, half an answer is.
        ([1] * 24 + TEXT, False),
        ([1] * 60 + TEXT[:30], True),
    ],
)
def test_a_loop_is_a_short_piece_repeated_to_the_end_or_over_half_of_the_answer(
    token_ids: list[int], loop: bool
) -> None:
    assert is_loop(token_ids) is loop


# ---- prompts --------------------------------------------------------------------------------------


def test_every_group_has_eight_prompts_of_its_own_and_all_are_different() -> None:
    prompts = read(OWN)

    assert set(Counter(prompt.group for prompt in prompts).values()) == {8}
    assert tuple(dict.fromkeys(prompt.group for prompt in prompts)) == GROUPS
    assert len({prompt.turns for prompt in prompts}) == len(prompts) == 136
    # No template: the first words differ, but where a passage or a file comes with the same request.
    for group in set(GROUPS) - {"retrieval_augmented", "code_edit"}:
        starts = {prompt.turns[0][:30] for prompt in prompts if prompt.group == group}
        assert len(starts) == 8, group


def test_long_tasks_are_long_and_conversations_have_turns() -> None:
    for prompt in read(OWN):
        words, lines = len(" ".join(prompt.turns).split()), prompt.turns[0].count("\n")
        if prompt.group in ("summarization", "retrieval_augmented"):
            assert 150 <= words <= 500, prompt.id
        if prompt.group == "code_edit":
            assert 20 <= lines <= 50, prompt.id
        assert (len(prompt.turns) > 1) == (prompt.group == "multi_turn"), prompt.id


def test_questions_of_spec_bench_are_read_by_its_six_tasks(tmp_path: Path) -> None:
    path = tmp_path / "spec_bench.jsonl"
    rows = [
        {"id": "81", "set": "spec-bench", "category": "writing", "turns": ["a", "b"]},
        {"id": "161", "category": "translation", "turns": ["c"]},
        {"id": "321", "set": "spec-bench", "category": "qa", "turns": ["d"]},
        {"id": "401", "category": "math_reasoning", "turns": ["e"]},
        {"id": "481", "category": "rag", "turns": ["f"]},
        {"id": "9", "set": "another", "category": "medical", "turns": ["g"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")

    assert read(path)[0] == Prompt("81", "multi_turn", ("a", "b"), "writing")
    assert [prompt.group for prompt in read(path)] == [
        "multi_turn",
        "translation",
        "question_answering",
        "mathematical_reasoning",
        "retrieval_augmented",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "2: no JSON"),
        ("[]", "2: a row is an object with an id"),
        ('{"turns": ["a"], "group": "g"}', "2: a row is an object with an id"),
        ('{"id": "b", "turns": ["a"]}', "2: no group; known categories: writing"),
        ('{"id": "b", "category": [], "turns": ["a"]}', "2: no group"),
        ('{"id": "b", "group": "g"}', "2: turns must be"),
        ('{"id": "b", "group": "g", "turns": "a"}', "2: turns must be"),
        ('{"id": "b", "group": "g", "turns": [" "]}', "2: turns must be"),
        ('{"id": "a", "group": "g", "turns": ["b"]}', "2: the id 'a' is there already"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "group": "g", "turns": ["a"]}\n' + line)

    with pytest.raises(PromptError, match=message):
        read(path)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()

    with pytest.raises(PromptError, match="cannot read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(PromptError, match="has no prompts"):
        read(tmp_path / "empty.jsonl")


def test_groups_are_selected_in_turn_up_to_the_limit() -> None:
    prompts = [Prompt(f"{group}{i}", group, ("x",)) for group in "abc" for i in range(3)]

    def ids(*args: object) -> list[str]:
        return [prompt.id for prompt in select(prompts, *args)]  # type: ignore[arg-type]

    assert ids((), 2) == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert ids(("c", "a"), 1) == ["c0", "a0"]
    assert len(ids()) == 9
    with pytest.raises(PromptError, match="no prompts of d; known: a, b, c"):
        select(prompts, ("d",))


def test_a_group_gives_its_kinds_in_turn() -> None:
    prompts = [Prompt(f"{kind}{i}", "g", ("x",), kind) for kind in "ab" for i in range(2)]

    assert [prompt.id for prompt in select(prompts, (), 3)] == ["a0", "b0", "a1"]


# ---- measuring ------------------------------------------------------------------------------------


class Letters:
    """Encodes a conversation as its letters."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def arm(
    name: str, decode: Callable[[Task], Sequence[int]], calls: list[str], same_noise: bool = True
) -> Arm:
    def answer(task: Task) -> Answer:
        calls.append(name)
        return Answer(decode(task), 0.0, 1)

    return Arm(name, answer, same_noise)


def test_a_conversation_goes_on_with_what_standard_mode_answered() -> None:
    calls: list[str] = []
    seen: list[str] = []

    def echo(task: Task) -> list[int]:
        seen.append(Letters().decode(task.token_ids))
        return list(task.token_ids[:2])

    arms = [arm("other", lambda task: [ord("z")], calls), arm(STANDARD, echo, calls)]
    found = decode_block(Block(Prompt("p", "g", ("ab", "cd")), 0.8, 0, 1), arms, Letters(), 9)

    assert seen == ["ab", "ababcd"]
    assert calls == [STANDARD, "other"] * 2
    assert [(run.prompt, run.arm, run.equal) for run in found] == [
        ("p/1", "other", False),
        ("p/1", STANDARD, True),
        ("p/2", "other", False),
        ("p/2", STANDARD, True),
    ]


@pytest.mark.parametrize(("temperature", "equal"), [(0.0, False), (0.8, None)])
def test_text_of_another_sampler_is_compared_at_temperature_zero_alone(
    temperature: float, equal: bool | None
) -> None:
    arms = [
        arm(GENERATE, lambda task: [1], [], same_noise=False),
        arm(STANDARD, lambda task: [2], []),
    ]

    found = decode_block(Block(Prompt("p", "g", ("a",)), temperature, 0, 0), arms, Letters(), 9)

    assert [run.equal for run in found] == [equal, True]


def test_the_order_of_the_arms_rotates_with_prompt_and_round() -> None:
    prompts = [Prompt(name, "g", ("a",)) for name in "pq"]

    todo = blocks(prompts, (0.0, 0.8), 2)

    assert [(b.prompt.id, b.temperature, b.round, b.shift) for b in todo[:4]] == [
        ("p", 0.0, 0, 0),
        ("p", 0.8, 0, 0),
        ("q", 0.0, 0, 1),
        ("q", 0.8, 0, 1),
    ]
    assert [b.shift for b in todo[4:]] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([], [GENERATE, LOOKUP, STANDARD, SPECULATIVE, "speculative (model)"]),
        ([STANDARD], [STANDARD]),
        (["speculative"], [STANDARD, SPECULATIVE, "speculative (model)"]),
        ([LOOKUP, SPECULATIVE], [LOOKUP, STANDARD, SPECULATIVE]),
    ],
)
def test_arms_are_chosen_by_name_or_mode_and_standard_is_always_there(
    names: list[str], chosen: list[str]
) -> None:
    known = [GENERATE, LOOKUP, STANDARD, SPECULATIVE, "speculative (model)"]
    arms = [arm(name, lambda task: [1], []) for name in known]

    assert [one.name for one in choose(arms, names)] == chosen
    with pytest.raises(ValueError, match="no arm fast; known: generate, generate"):
        choose(arms, [*names, "fast"])


def run_of(block: Block) -> list[Run]:
    return [a_run(prompt=block.prompt.id)]


def a_run(**fields: object) -> Run:
    row = Run("p", "g", 0.0, STANDARD, 0, 64, 2.0, 0.5, 64, 0, 0, True, False)
    return replace(row, **fields)  # type: ignore[arg-type]


def todo(count: int) -> list[Block]:
    return blocks([Prompt(str(i), "g", ("a",)) for i in range(count)], (0.0,), 1)


def test_a_disturbed_block_is_measured_again_and_no_other() -> None:
    readings = iter([1.0, 1.0, 1.0, 5.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0])
    decoded: list[str] = []

    def decode(block: Block) -> list[Run]:
        decoded.append(block.prompt.id)
        return run_of(block)

    found = measure(todo(5), decode, Guard(lambda: next(readings)), max_repeats=9)

    # The third and the fourth stand next to the slow reading.
    assert decoded == ["0", "1", "2", "3", "4", "2", "3"]
    assert [run.prompt for run in found] == ["0", "1", "2", "3", "4"]
    assert not any(run.disturbed for run in found)


def test_repeats_are_bounded_and_what_stays_disturbed_is_marked() -> None:
    readings = iter([1.0, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 9.0])
    found = measure(todo(5), run_of, Guard(lambda: next(readings)), max_repeats=1)

    assert [run.disturbed for run in found] == [False, False, True, True, False]


def test_an_interrupted_measurement_keeps_what_it_has() -> None:
    def decode(block: Block) -> list[Run]:
        if block.prompt.id == "2":
            raise KeyboardInterrupt
        return run_of(block)

    found = measure(todo(5), decode, Guard(lambda: 1.0), max_repeats=9)

    assert [run.prompt for run in found] == ["0", "1"]


# ---- figures --------------------------------------------------------------------------------------


def answer(prompt: str, arm: str, speed: float, **fields: object) -> Run:
    """64 tokens, the first after no time."""
    given = {"seconds": 64 / speed, "prefill_seconds": 0.0, **fields}
    return a_run(prompt=prompt, arm=arm, **given)


def sample() -> Measurement:
    rows = [
        answer("a", STANDARD, 10),
        answer("a", STANDARD, 30, round=1),
        answer("a", STANDARD, 20, round=2),
        answer("a", LOOKUP, 25, steps=32),
        answer("a", SPECULATIVE, 50, steps=16, proposed=60, accepted=48),
        answer("b", STANDARD, 20),
        answer("b", LOOKUP, 20, equal=False),
        answer("b", SPECULATIVE, 30, steps=32, proposed=40, accepted=32),
        answer("c", STANDARD, 20, group="h", loop=True),
        answer("c", SPECULATIVE, 900, group="h", loop=True),
        answer("d", STANDARD, 20, group="h", tokens=7),
        answer("d", SPECULATIVE, 900, group="h", tokens=7),
        answer("e", STANDARD, 20, group="h"),
        answer("e", SPECULATIVE, 900, group="h", disturbed=True),
        answer("f", STANDARD, 20, group="h"),
        answer("f", SPECULATIVE, 20, group="h"),
        answer("a", STANDARD, 20, temperature=0.8),
        answer("a", GENERATE, 10, temperature=0.8, equal=None),
    ]
    throughput = [
        Throughput(name, width, 0, 16, 1000, 1000 / rate, equal, False, temperature, *counts)
        for temperature, name, width, rate, equal, *counts in [
            (0.8, STANDARD, 8, 80.0, 16, 1000, 0, 0),
            (0.8, SPECULATIVE, 8, 88.0, 16, 800, 400, 200),
            (0.0, STANDARD, 1, 30.0, 16, 1000, 0, 0),
            (0.0, SPECULATIVE, 1, 45.0, 16, 500, 800, 500),
            (0.0, SPECULATIVE, 8, 99.0, 15, 625, 500, 375),
            (0.0, STANDARD, 8, 90.0, 16, 1000, 0, 0),
        ]
    ]
    return Measurement(
        {
            "processor": "Some CPU",
            "threads": 2,
            "device": "cpu",
            "commit": "abc",
            "date": "2026-01-05",
            "reference_seconds": {"median": 0.2, "least": 0.1, "most": 0.4},
        },
        {"model": "tiny", "dtype": "float32", "tokens": 64, "rounds": 3},
        rows,
        throughput,
        {"long": "9000 tokens"},
    )


def test_a_ratio_is_of_medians_prompt_by_prompt_and_counts_equal_answers_alone() -> None:
    found = {(one.group, one.temperature, one.arm): one for one in figures(sample())}

    one = found["g", 0.0, SPECULATIVE]
    assert one.prompts == 2
    assert one.ratio.median == pytest.approx((50 / 20 + 30 / 20) / 2)
    assert (one.ratio.low, one.ratio.high) == (pytest.approx(1.6), pytest.approx(2.4))
    assert one.tokens_per_second == pytest.approx(40)
    assert one.decode_ratio == pytest.approx(one.ratio.median)
    assert one.ratio_to_lookup == pytest.approx(2.0)
    assert one.mean_acceptance_length == pytest.approx(128 / 48)
    assert one.acceptance_rate == pytest.approx(0.8)
    assert found["g", 0.0, LOOKUP].prompts == 1
    assert found["h", 0.0, SPECULATIVE].prompts == 1
    assert found[ALL, 0.0, SPECULATIVE].prompts == 3
    assert found["g", 0.0, STANDARD].acceptance_rate is None
    assert not found["g", 0.8, GENERATE].comparable
    assert ("h", 0.0, LOOKUP) not in found


def test_every_answer_that_does_not_count_has_its_reason() -> None:
    found = {(one.temperature, one.arm): one for one in exclusions(sample())}

    assert found[0.0, LOOKUP].different == ("b",)
    assert found[0.0, SPECULATIVE].loops == ("c",)
    assert found[0.0, SPECULATIVE].short == ("d",)
    assert found[0.0, SPECULATIVE].disturbed == ("e",)
    assert found[0.0, SPECULATIVE].answers == 6
    assert why_not(a_run(equal=False, loop=True)) == "different"
    assert why_not(a_run(equal=None)) is None


def test_rates_compare_the_same_number_at_once_at_the_same_temperature() -> None:
    found = {(one.temperature, one.concurrency, one.arm): one for one in rates(sample().throughput)}

    assert list(found) == [
        (temperature, width, arm)
        for temperature, width in [(0.0, 1), (0.0, 8), (0.8, 8)]
        for arm in (STANDARD, SPECULATIVE)
    ]
    one, many = found[0.0, 1, SPECULATIVE], found[0.0, 8, SPECULATIVE]
    assert (one.ratio, one.equal, many.equal) == (pytest.approx(1.5), 16, 15)
    assert many.ratio == pytest.approx(1.1)
    assert (one.mean_acceptance_length, one.acceptance_rate) == (2.0, 0.625)
    assert found[0.8, 8, SPECULATIVE].ratio == pytest.approx(1.1)
    assert found[0.8, 8, STANDARD].acceptance_rate is None


# ---- report ---------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_saved_and_nothing_else_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.json"
    runs.save(sample(), path)

    assert runs.read(path) == sample()
    assert sum('"prompt"' in line for line in path.read_text().splitlines()) == len(sample().runs)
    path.write_text('{"batch_1": []}')
    with pytest.raises(ValueError, match="measure again"):
        runs.read(path)


def test_the_report_says_what_is_equal_what_is_left_out_and_where_it_ran() -> None:
    text = report.markdown(sample())

    assert "tiny, float32, Some CPU, 2 threads; at most 64 tokens, 3 rounds, commit abc" in text
    assert "| g | speculative (suffix) | 2 | 40.0 | 39.4 | 2.00x (1.60–2.40) " in text
    assert "| g | generate \\* | 1 |" in text
    assert "| 0.8 | generate | 1 | not comparable | 0 | 0 | 0 |" in text
    assert "| 0 | 1 | standard | 30.0 | 1.00x | 1.00 | – | 16 of 16 |" in text
    assert "| 0 | 1 | speculative (suffix) | 45.0 | 1.50x | 2.00 | 62% | 16 of 16 |" in text
    assert "| 0 | 8 | speculative (suffix) | 99.0 | – | 1.60 | 75% | 15 of 16 |" in text
    assert "| 0.8 | 8 | speculative (suffix) | 88.0 | 1.10x | 1.25 | 50% | 16 of 16 |" in text
    assert "Not measured: long (9000 tokens)." in text


def test_the_short_table_stands_between_its_marks() -> None:
    text = "before\n<!-- benchmark -->\nold\n<!-- /benchmark -->\nafter\n"

    changed = report.with_table(text, sample())

    assert "old" not in changed
    assert (
        "| prompts | standard, tokens/s | generate | prompt lookup | speculative | hybrid "
        "| tokens per pass |" in changed
    )
    assert "| g | 20.0 | – | 1.25x | 2.00x | – | 2.67 |" in changed
    assert "| h | 20.0 | – | – | 1.00x | – |" in changed
    assert report.with_table(changed, sample()) == changed
    assert report.with_table(changed, None) == text.replace("old\n", "")
    with pytest.raises(ValueError, match="needs"):
        report.with_table("no marks", sample())


def test_a_report_or_a_readme_that_is_not_what_the_json_gives_is_named(tmp_path: Path) -> None:
    readme, path = tmp_path / "README.md", tmp_path / f"{report.README_RESULT}.json"
    readme.write_text("<!-- benchmark -->\n<!-- /benchmark -->\n")
    assert report.stale(tmp_path, readme) == []

    runs.save(sample(), path)
    assert report.stale(tmp_path, readme) == [str(path.with_suffix(".md")), str(readme)]

    report.write(path)
    readme.write_text(report.with_table(readme.read_text(), sample()))
    assert report.stale(tmp_path, readme) == []


def test_the_committed_tables_are_what_the_committed_json_gives() -> None:
    assert (report.RESULTS / f"{report.README_RESULT}.json").is_file()
    assert report.stale() == []


def test_the_picture_has_every_group_and_is_the_same_each_time(tmp_path: Path) -> None:
    shown = [one for one in figures(sample()) if one.temperature == 0]
    for name in ("a.svg", "b.svg"):
        plot.draw(shown, tmp_path / name, "title")

    picture = (tmp_path / "a.svg").read_text()
    assert picture == (tmp_path / "b.svg").read_text()
    assert all(f">{text}<" in picture for text in ("g", "h", SPECULATIVE, LOOKUP, "title"))
    assert f">{STANDARD}<" not in picture


# ---- losslessness ---------------------------------------------------------------------------------


def test_the_documented_figures_of_losslessness_are_those_that_were_measured() -> None:
    text = Path("docs/losslessness.md").read_text(encoding="utf-8")
    _, _, found = text.partition("## What was found")
    found, _, _ = found.replace("\u2212", "-").partition("\n## ")
    arms = json.loads(Path("benchmarks/results/losslessness.json").read_text())["arms"].values()
    rows = [line for line in found.splitlines() if line.startswith("| `")]

    assert len(rows) == len(arms) == 3
    for row, arm in zip(
        rows, sorted(arms, key=lambda arm: (not arm["exact"], arm["arm"])), strict=True
    ):
        tally = arm["tally"]
        for name in ("accepted", "draft_blind", "hedging"):
            seen, expected = tally[name]["observed"], tally[name]["expected"]
            assert f"{seen:,.0f}, {expected:,.1f}" in row, (arm["arm"], name)
        assert f"{tally['num_tokens']:,}" in row
        assert (
            arm["tokens_to_alarm"] is None if arm["exact"] else str(arm["tokens_to_alarm"]) in row
        )
