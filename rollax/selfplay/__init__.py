"""Self-play: frozen past opponents, and a league with ratings."""
