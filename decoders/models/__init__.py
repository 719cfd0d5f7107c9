"""Target and draft models, behind one protocol."""
