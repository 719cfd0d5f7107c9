"""Evidence: what the tallies of many requests say together about the law of the answers."""
