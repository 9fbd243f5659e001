"""Keys and numbers of the results of trainers."""

PPO_STATS = {
    *("clip_fraction", "cur_kl_coeff", "cur_lr", "entropy", "kl", "num_gradient_steps"),
    *("policy_loss", "total_loss", "vf_explained_var", "vf_loss"),
}


def keys(value):
    """The keys of nested dicts, without their values."""
    return {key: keys(part) for key, part in value.items()} if isinstance(value, dict) else None


def numbers(result):
    """A result without its times."""
    times = ("time_this_iter_s", "time_total_s", "env_steps_per_s", "timers")
    return {key: value for key, value in result.items() if key not in times}
