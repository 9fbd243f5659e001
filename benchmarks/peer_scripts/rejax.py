"""rejax: training in gymnax's environments, as compiled calls of many steps.

Libraries are imported by the functions, because the time of a first call begins with the start of the process.
"""

from typing import Any

from benchmarks.protocol import Link, run, versions


def training(link: Link, algorithm: str, env: str, settings: dict, steps: int, seeds: int = 1) -> None:
    """Training, without evaluation.

    Args:
        settings: keyword arguments of the algorithm.
        steps: environment steps of one compiled call, of each seed.
        seeds: how many seeds the call trains, by `jax.vmap`.
    """
    import jax

    algo = _algorithm(algorithm, env, settings, steps)
    train, state = _train(algo), _state(algo, seeds)
    train = jax.jit(jax.vmap(train) if seeds > 1 else train, donate_argnums=0)

    def call() -> int:
        nonlocal state
        state = jax.block_until_ready(train(state))
        return seeds * steps

    link.serve_rates(call, versions=_versions())


def sampling(link: Link, env: str, num_envs: int, fragment: int) -> None:
    """Fragments of PPO, with values, but without advantages; they stay on the device."""
    import jax

    settings = {"num_envs": num_envs, "num_steps": fragment, "agent_kwargs": {"activation": "tanh"}}
    algo = _algorithm("PPO", env, settings, num_envs * fragment)
    sample, state = jax.jit(algo.collect_trajectories), _state(algo)

    def call() -> int:
        nonlocal state
        state, _ = jax.block_until_ready(sample(state))
        return num_envs * fragment

    link.serve_rates(call, versions=_versions())


def first_iteration(link: Link, algorithm: str, env: str, settings: dict, steps: int) -> None:
    """The first call of `training`, from the start of the process to its end."""
    import jax

    algo = _algorithm(algorithm, env, settings, steps)
    jax.block_until_ready(jax.jit(_train(algo), donate_argnums=0)(_state(algo)))
    link.send(event="finished")
    link.send(event="facts", facts={"versions": _versions()})


def _algorithm(name: str, env: str, settings: dict, steps: int) -> Any:
    """Returns an algorithm whose `train` takes so many steps and evaluates nothing."""
    import rejax

    algo = rejax.get_algo(name.lower()).create(
        env=env, **settings, total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True
    )
    return algo.replace(eval_callback=lambda algo, state, rng: ())


def _train(algo: Any) -> Any:
    return lambda state: algo.train(train_state=state)[0]


def _state(algo: Any, seeds: int = 1) -> Any:
    """Returns the initial state, or those of several seeds, in arrays of their own, which a call may give away."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    state = jax.vmap(algo.init_state)(keys) if seeds > 1 else algo.init_state(keys[0])
    return jax.tree.map(jnp.copy, state)


def _versions() -> dict[str, str]:
    return versions("rejax", "gymnax", "jax", "flax", "optax", "numpy")


if __name__ == "__main__":
    run(training, sampling, first_iteration)
