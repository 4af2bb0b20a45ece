"""DP-SGD is refused where a machine's settings round float32 products, and by what names it."""

from functools import partial

import numpy as np
import pytest
import torch

from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.run.validated import ValidatedRun
from murmur.learning.models import mlp
from murmur.learning.training import precision
from murmur.learning.training.dpsgd import DpSgd
from murmur.learning.training.precision import PrecisionError, require_float32
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import require_separate_examples

CPU = torch.device("cpu")
ONEDNN = ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"]
TF32 = ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"]
ROUNDING = [(name, value) for name in ONEDNN for value in ("BF16", "bf16", "F16", "TF32", "ANY")]
ROUNDING += [(name, "1") for name in TF32]
HARMLESS = [(name, value) for name in ONEDNN for value in ("", "STRICT", "strict")]
HARMLESS += [(name, value) for name in TF32 for value in ("", "0")]
DPSGD = {
    "dpsgd_fedavg": ["strategy=dpsgd_fedavg", "privacy.unit=record"],
    "nbafl": ["strategy=nbafl", "privacy.unit=record"],
    "kd_dpfl": ["experiment=digits_kd_dpfl", "federation.num_clients=23"],
}
SMALL = ["engine=inline", "dataset=digits", "privacy.noise=seeded", "tracking=none"]


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch):
    """Without what this machine's environment says, and with PyTorch's flags put back."""
    for name in (*ONEDNN, *TF32):
        monkeypatch.delenv(name, raising=False)
    flags = [precision.attrgetter(name)(torch.backends) for name in precision._FLAGS]
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    for name, value in zip(precision._FLAGS, flags, strict=True):
        backend, _, flag = name.rpartition(".")
        setattr(precision.attrgetter(backend)(torch.backends), flag, value)


def trainer():
    return Trainer(partial(mlp, hidden=[4]), (1, 4, 4), 3)


@pytest.mark.parametrize(("name", "value"), ROUNDING)
def test_a_variable_that_rounds_is_named_with_what_to_do(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(PrecisionError, match=rf"^{name}={value}: .*unset it .* or set it to "):
        require_float32(CPU)


@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_a_variable_that_rounds_nothing_is_let_through(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    require_float32(CPU)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: torch.set_float32_matmul_precision("medium"), "cuda.matmul"),
        (lambda: torch.set_float32_matmul_precision("high"), "cuda.matmul"),
        (lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"), "mkldnn.matmul"),
        (lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "tf32"), "mkldnn.conv"),
    ],
)
def test_a_flag_of_pytorch_that_rounds_is_named(change, named):
    require_float32(CPU)
    change()
    with pytest.raises(PrecisionError, match=rf"^torch\.backends\.{named}\.fp32_precision="):
        require_float32(CPU)


def test_autocast_is_named():
    refused = pytest.raises(PrecisionError, match=r"^torch\.autocast on cpu: ")
    with torch.autocast("cpu", torch.bfloat16), refused:
        require_float32(CPU)


@pytest.mark.parametrize("bits", [7, 10], ids=["bfloat16", "TF32"])
@pytest.mark.parametrize("name", precision._PRODUCTS)
def test_what_rounds_without_a_known_setting_is_found_by_trying(monkeypatch, name, bits):
    product, *shapes = precision._PRODUCTS[name]

    def rounded(*factors):
        """As such a machine has it; what it is compared with is in double precision."""
        if factors[0].dtype == torch.float64:
            return product(*factors)
        scale = 2.0**bits
        cut = [torch.ldexp((m * scale).round() / scale, e) for m, e in map(torch.frexp, factors)]
        return product(*cut)

    monkeypatch.setitem(precision._PRODUCTS, name, (rounded, *shapes))
    with pytest.raises(PrecisionError, match=rf"^float32 products \({name}\) are rounded"):
        require_float32(CPU)


def test_dpsgd_and_its_trial_ask(monkeypatch):
    require_separate_examples(trainer())
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(PrecisionError):
        require_separate_examples(trainer())
    with pytest.raises(PrecisionError):
        DpSgd(4, 1.0, 0.1).train(
            trainer(),
            np.zeros((4, 1, 4, 4), np.float32),
            np.zeros(4, np.int64),
            steps=1,
            sample=lambda count: np.ones(count, bool),
            perturb=lambda total: total,
        )


@pytest.mark.parametrize("name", DPSGD)
def test_every_algorithm_of_dpsgd_is_refused_at_its_start(monkeypatch, name):
    words = compose([*SMALL, *DPSGD[name]])
    ValidatedRun(words)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(ConfigError, match=r"^ONEDNN_DEFAULT_FPMATH_MODE=BF16: "):
        ValidatedRun(words)


def test_algorithms_that_clip_whole_updates_are_not_refused(monkeypatch):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    ValidatedRun(compose([*SMALL, "strategy=dp_fedavg"]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_s_convolutions_are_told_not_to_round():
    torch.backends.cudnn.allow_tf32 = True
    require_float32(torch.device("cuda"))
    assert not torch.backends.cudnn.allow_tf32
