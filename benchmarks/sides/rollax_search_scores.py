"""ARS: greedy evaluations at equal intervals during the search, as a JSON list of (steps, score)."""

import argparse
import json
import sys


def main() -> None:
    """Prints the curve of one seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="config keys")
    parser.add_argument("--budget", type=int, required=True, help="steps")
    parser.add_argument("--evaluations", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True, help="of each evaluation")
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr

    from rollax import ARSTrainer

    config = {
        **args.settings,
        "num_envs_per_worker": 2 * args.settings["num_directions"],
        "evaluation_num_episodes": args.episodes,
        "seed": args.seed,
    }
    curve = []
    with ARSTrainer(args.env, config) as trainer:
        for number in range(1, args.evaluations + 1):
            steps = 0
            while steps < args.budget * number // args.evaluations:
                steps = trainer.train()["timesteps_total"]
            curve.append((steps, trainer.evaluate()["episode_reward_mean"]))
            print(f"{args.env} seed {args.seed}: {curve[-1]}", file=sys.stderr, flush=True)
    print(json.dumps(curve), file=answers)


if __name__ == "__main__":
    main()
