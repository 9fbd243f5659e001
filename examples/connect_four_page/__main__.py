"""Connect four in the browser, against a trained policy: python examples/connect_four_page CHECKPOINT

CHECKPOINT is what `python examples/connect_four.py FOLDER` saves into the folder. The policy server also serves the
page, which asks it for moves.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from starlette.responses import HTMLResponse

from rollax import PolicyBackend, PolicyServer, load_policy

PAGE = Path(__file__).with_name("index.html")


def main(checkpoint: Path, port: int) -> None:
    """Serves the page and the policy until Ctrl-C."""
    backend = PolicyBackend({"learner": load_policy(checkpoint, "learner")})
    backend.warm_up(1)
    pages = {"/play": HTMLResponse(PAGE.read_bytes())}
    with PolicyServer(backend, port=port, pages=pages) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"The game is at {server.address}/play, the page of its server at {server.address}.", flush=True)
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Connect four in the browser, against a trained policy.")
    parser.add_argument("checkpoint", type=Path, help="a checkpoint of examples/connect_four.py")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one")
    given = parser.parse_args()
    main(given.checkpoint, given.port)
