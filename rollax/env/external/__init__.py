"""Environments that run their own loop and request actions."""
