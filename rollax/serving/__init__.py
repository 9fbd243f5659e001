"""Policies served over the network: servers, and clients in Python, JavaScript and C#."""
