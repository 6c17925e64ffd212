"""Which device and which precision a run takes."""

import pytest
import torch

from triform.training.hardware import check_granted, device_type, matmul_ceiling, pick_precision


@pytest.mark.parametrize(("accelerator", "device"), [("cpu", "cpu"), ("gpu", "cuda"), ("cuda", "cuda")])
def test_a_name_means_one_device(accelerator: str, device: str) -> None:
    assert device_type(accelerator) == device


def test_auto_is_what_is_there() -> None:
    assert device_type("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_cpu_computes_in_float32_and_a_wish_is_granted() -> None:
    assert pick_precision("auto", "cpu") == "32-true"
    assert pick_precision("bf16-mixed", "cpu") == "bf16-mixed"


@pytest.mark.gpu
@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
def test_a_gpu_by_any_name_computes_in_bfloat16_at_its_own_speed(accelerator: str) -> None:
    device = device_type(accelerator)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    assert pick_precision("auto", device) == ("bf16-mixed" if native else "32-true")
    assert matmul_ceiling(device, "bf16-mixed") > 20 * matmul_ceiling("cpu", "32-true")


def test_a_precision_that_nothing_computes_in_is_refused() -> None:
    with pytest.raises(ValueError, match=r"precision=float8 .*; set trainer\.precision=bf16-mixed"):
        pick_precision("float8", "cuda")


@pytest.mark.parametrize(
    ("asked", "environment", "message"),
    [
        ({"trainer.devices": "4"}, {}, r"trainer\.devices=4, but torchrun or srun has started 2 ranks on each of 3"),
        ({"trainer.num_nodes": "1"}, {}, r"trainer\.num_nodes=1, but .* of 3 machines; leave trainer\.num_nodes out"),
        ({}, {"SLURM_JOB_NUM_NODES": "5"}, r"3 machines take part, but SLURM has granted 5; .* --nodes=3"),
        (
            {},
            {"SLURM_GPUS_ON_NODE": "8"},
            r"2 ranks on each machine, but SLURM has granted 8 GPUs .* --gpus-per-node=2",
        ),
    ],
)
def test_other_ranks_than_asked_for_or_granted_are_refused(
    asked: dict[str, str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_granted(asked, 2, 3, "cuda", environment)


def test_ranks_as_asked_for_and_granted_are_taken() -> None:
    slurm = {"SLURM_JOB_NUM_NODES": "5", "SLURM_STEP_NUM_NODES": "3", "SLURM_GPUS_ON_NODE": "2"}
    check_granted({"trainer.devices": "auto", "trainer.num_nodes": "3"}, 2, 3, "cuda", slurm)
    check_granted({}, 2, 3, "cpu", slurm | {"SLURM_GPUS_ON_NODE": "8"})
