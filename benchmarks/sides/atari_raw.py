"""Atari games stepped with actions drawn beforehand: as ale-py's vector env, or as single envs one after another."""

import argparse

import numpy as np

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of the bare environments, created as rollax creates them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    parser.add_argument("--one-by-one", action="store_true", help="Gymnasium's wrappers around single envs")
    args = parser.parse_args()

    from rollax import EnvContext
    from rollax.env.making import make_base_env
    from rollax.env.registry import env_creator
    from rollax.env.rows import Rows

    context = EnvContext({"native_vector": not args.one_by_one})
    base = make_base_env(env_creator(args.env), context, args.num_envs)
    everyone = np.arange(args.num_envs)
    rows = base.reset_rows(everyone, everyone.tolist())
    drawn = np.random.default_rng(0).integers(6, size=(args.fragment, args.num_envs))

    def collect() -> int:
        nonlocal rows
        steps = 0
        for actions in drawn:
            assert rows is not None
            acting = rows.acts.nonzero()[0]
            if len(acting):
                base.send_rows(rows, acting, actions[rows.env_index[acting]])
            rows = base.poll_rows()
            steps += int(np.count_nonzero(~rows.starts))
            if len(rows.ended_envs):
                started = base.reset_rows(rows.ended_envs)
                rows = rows if started is None else Rows.concat(rows, started)
        return steps

    serve_rates(collect, versions=versions("rollax", "gymnasium", "ale-py", "opencv-python-headless", "numpy"))


if __name__ == "__main__":
    main()
