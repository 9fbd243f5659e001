"""The sides that run in the virtual environments of the other libraries."""
