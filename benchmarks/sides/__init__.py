"""The sides that run in rollax's own Python: the raw environment loops and rollax itself."""
