"""Diagnoses of runs, from their statistics and from episodes that their policies play."""
