"""Action distributions for each action space: pure functions of a flat array of parameters."""
