"""The sides that run in the peers' own virtual environments."""
