"""The rollout workers of a run, in this process and in others."""
