"""Off-policy estimates: the value of a policy from episodes that another policy has played."""
