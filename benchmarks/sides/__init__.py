"""The sides that run in rollax's Python: raw environment loops and rollax itself."""
