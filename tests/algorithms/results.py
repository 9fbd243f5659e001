"""Keys of the results of trainers."""

PPO_STATS = {
    "cur_kl_coeff",
    "cur_lr",
    "entropy",
    "kl",
    "num_gradient_steps",
    "policy_loss",
    "total_loss",
    "vf_explained_var",
    "vf_loss",
}


def keys(value):
    """The keys of nested dicts, without their values."""
    return {key: keys(part) for key, part in value.items()} if isinstance(value, dict) else None
