"""The environment variables that other processes start with."""

from __future__ import annotations

TORCH_DEVICE = "ROLLAX_TORCH_DEVICE"
"""The environment variable with the device of policies in PyTorch, in a process that reserves no GPU."""

_GPU_SHARE = 0.9  # of the GPU memory that an actor reserves; the rest is for allocations outside of JAX


def process_settings(num_gpus: float) -> dict[str, str]:
    """The environment variables of a process with one computing thread, on the CPU unless it reserves a GPU."""
    settings = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if num_gpus == 0:
        return {**settings, "JAX_PLATFORMS": "cpu", TORCH_DEVICE: "cpu"}
    return {**settings, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{min(num_gpus, 1.0) * _GPU_SHARE:.3f}"}
