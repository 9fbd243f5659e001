"""Videos of chosen episodes."""
