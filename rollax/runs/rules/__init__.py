"""Rules that find what is wrong in a run, from its logged statistics."""
