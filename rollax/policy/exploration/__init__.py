"""How a policy turns its model's outputs into actions: drawn from a distribution, or greedy actions with noise."""
