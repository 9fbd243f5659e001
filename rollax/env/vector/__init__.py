"""Environments that step several copies at once."""
