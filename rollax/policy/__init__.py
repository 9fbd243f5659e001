"""Policies: observations in, actions out, and how they learn."""
