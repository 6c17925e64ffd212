"""What the machine can do."""

import os
import time
from collections.abc import Mapping

import torch

FLOPS_SECONDS = 0.05


def rank() -> int:
    """This process's rank over all nodes, as who started it tells: torchrun, our runner (one node) or srun."""
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def check_granted(
    asked: Mapping[str, str], devices: int, nodes: int, device: str, environment: Mapping[str, str]
) -> None:
    """Refuse a run whose ranks are others than those asked for, or than a scheduler has granted.

    Args:
        asked: what was typed for `trainer.devices` and `trainer.num_nodes`, if anything.
        devices: ranks on each machine that torchrun or srun has started.
        nodes: machines that they are on.
        device: "cuda" or "cpu".
        environment: with what SLURM says, where it runs this.

    Raises:
        ValueError: they differ.
    """
    started = {"trainer.devices": devices, "trainer.num_nodes": nodes}
    for key, value in asked.items():
        if value not in ("auto", str(started[key])):
            raise ValueError(
                f"trainer: {key}={value}, but torchrun or srun has started {devices} ranks on each of {nodes} machines"
                f"; leave {key} out, or start as many"
            )
    granted = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES")
    if granted is not None and int(granted) != nodes:
        raise ValueError(
            f"trainer: {nodes} machines take part, but SLURM has granted {granted}; start ranks on all of them, "
            f"or ask for --nodes={nodes}"
        )
    gpus = environment.get("SLURM_GPUS_ON_NODE", "")
    if device == "cuda" and gpus.isdigit() and int(gpus) != devices:
        raise ValueError(
            f"trainer: {devices} ranks on each machine, but SLURM has granted {gpus} GPUs on this one; start a rank "
            f"for each, or ask for --gpus-per-node={devices}"
        )


def device_type(accelerator: str) -> str:
    """What torch calls the device that `trainer.accelerator` means: "cuda" or "cpu"; "auto" takes a GPU if it can."""
    if accelerator == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if accelerator == "gpu" else accelerator


def pick_precision(precision: str, device: str) -> str:
    """ "auto" is bfloat16 on a GPU that computes in it, else float32: CPUs are often 100 times slower in bfloat16.

    Raises:
        ValueError: "float8", which nothing here computes in.
    """
    if precision == "float8":
        raise ValueError(
            "trainer: precision=float8 needs a GPU of compute capability 8.9 or more and the package torchao, which "
            "triform does not use yet; set trainer.precision=bf16-mixed"
        )
    if precision != "auto":
        return precision
    has_bfloat16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if has_bfloat16 else "32-true"


def matmul_ceiling(device: str, precision: str) -> float:
    """Floating-point operations per second of one device at large matrix products, measured for a moment.

    On a CPU it is what its threads reach while they run, so that other programs on the same cores do not lower it.
    """
    dtype = {"bf16": torch.bfloat16, "16-m": torch.float16, "16-t": torch.float16}.get(precision[:4], torch.float32)
    size = 8192 if device == "cuda" else 1024
    a, b = torch.ones(size, size, dtype=dtype, device=device), torch.ones(size, size, dtype=dtype, device=device)
    threads = torch.get_num_threads()
    clock = time.perf_counter if device == "cuda" else lambda: time.process_time() / threads
    best, end = float("inf"), time.perf_counter() + FLOPS_SECONDS
    while time.perf_counter() < end:
        start = clock()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - start)
    return 2 * size**3 / best
