"""Native vector envs, created the same way for the raw side and for rollax."""

import gymnasium as gym


def make_native(env_id: str, num_envs: int) -> gym.vector.VectorEnv:
    """Returns the vector env that Gymnasium's registry has for `env_id`."""
    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
    return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
