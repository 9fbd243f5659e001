"""Models: networks for every observation space, and action distributions. Nothing is loaded here."""
