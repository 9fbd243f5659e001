"""Trainers, and one file per algorithm."""
