"""The counts of one sequence."""

from decoders.stats import DecodeStats


def test_the_longest_draft_is_the_most_proposed_in_one_step():
    stats = DecodeStats()
    assert stats.longest_draft == 0

    for proposed, accepted in ((2, 1), (5, 0), (3, 3)):
        stats.record_draft("suffix", 4, proposed, accepted)

    assert stats.longest_draft == 5
    assert (stats.num_drafts, stats.num_draft_tokens, stats.accept_counts) == (3, 10, [1, 1, 0, 1])
