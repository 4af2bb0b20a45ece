"""The models of the algorithms' papers, each a factory ``(input_shape, num_classes, **settings)``.

``input_shape`` is (channels, height, width). A model of images is a plain sequence of layers
without batch normalisation, whose statistics would leak what the parameters' noise protects.
Pooling comes before a monotone activation: the same function, on a quarter of the values. Each has
a file in ``conf/model``; settings that it does not take, and images too small for it, are refused
with a ValueError that names them.

Models of texts read token numbers (N, 1, 1, L), 0 for padding, which texts become in
``murmur.learning.data.tables``.

Below the models are the layers that PyTorch lacks (dropout with a stream of its own, a flatten that
copies nothing, quick pooling) and ``initialise``, how layers of either kind are drawn: by a NumPy
generator, never by PyTorch's global one.
"""

import contextlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from murmur.settings import Count, Decay

InputShape = tuple[int, int, int]
SCHEMES = ("torch", "glorot", "zeros")  # how linear layers and convolutions can be drawn
_LEVELS = 2**16
_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Network(nn.Sequential):
    """Layers in sequence, and the scheme by which their parameters are drawn.

    Args:
        layers: in their order.
        init: of ``SCHEMES``; see ``initialise``.

    Raises:
        ValueError: no such scheme.
    """

    def __init__(self, layers: Sequence[nn.Module], init: str = "torch") -> None:
        check_scheme(init)
        super().__init__(*layers)
        self.init = init


def mlp(
    input_shape: InputShape,
    num_classes: int,
    *,
    hidden: Sequence[int] = (64,),
    dropout: float = 0.0,
    init: str = "torch",
) -> Network:
    """Fully connected ReLU layers.

    Args:
        input_shape: (C, H, W), of whatever kind of input.
        num_classes: number of logits.
        hidden: widths of the layers; none gives logistic regression.
        dropout: share of a layer's outputs that training leaves out.
        init: of ``SCHEMES``; see ``initialise``.
    """
    layers = dense(math.prod(input_shape), hidden, num_classes, dropout)
    return Network([Flatten(), *layers], init)


class Centred(nn.Module):
    """A linear layer on directions away from a centre: W v/max(‖v‖, q) + a, v = x/‖x‖ − c.

    c = ``centre`` (d,) is a parameter like others, which an algorithm may release and none trains
    by gradients; q = ``radius``: of vectors shorter than this only a part of the length is left.
    """

    init = "zeros"

    def __init__(self, features: int, num_classes: int, radius: float) -> None:
        super().__init__()
        self.radius = float(radius)
        self.centre = nn.Parameter(torch.zeros(features))
        self.layer = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of features (N, d, 1, 1)."""
        rows = nn.functional.normalize(x.flatten(1), dim=1) - self.centre
        lengths = rows.norm(dim=1, keepdim=True)
        return self.layer(rows / lengths.clamp(min=self.radius))

    @torch.no_grad()
    def initialise(self, rng: object) -> None:
        """No centre."""
        self.centre.zero_()


def centred(input_shape: InputShape, num_classes: int, *, radius: float = 0.1) -> Centred:
    """One linear layer on features less a centre, scaled to unit length; see ``Centred``."""
    if not 0 < radius <= torch.finfo(torch.float32).max:
        raise ValueError(f"radius={radius}: must be above 0, and a number of float32")
    return Centred(math.prod(input_shape), num_classes, radius)


def cnn_small(
    input_shape: InputShape,
    num_classes: int,
    *,
    channels: Sequence[int] = (8, 16),
    downsample: str = "stride",
    hidden: Sequence[int] = (),
    dropout: float = 0.0,
    init: str = "torch",
) -> Network:
    """Two 5×5 convolutions with ReLU, made for speed on 28×28 images.

    Args:
        input_shape: (C, H, W).
        num_classes: number of logits.
        channels: of the two convolutions.
        downsample: "stride" evaluates every second pixel only; "pool" evaluates all and keeps the
            largest of four, which takes about three times as long and learns more from little data.
        hidden: widths of dense layers behind them.
        dropout: of the dense layers.
        init: of ``SCHEMES``; see ``initialise``.
    """
    if downsample not in ("stride", "pool"):
        raise ValueError(f"downsample={downsample!r}: must be stride or pool")
    stride = 1
    if downsample == "stride":
        stride = 2
    layers, features = _two_blocks("cnn_small", input_shape, channels, 5, 0, nn.ReLU, stride)
    return Network([*layers, *dense(features, hidden, num_classes, dropout)], init)


def cnn_16(
    input_shape: InputShape,
    num_classes: int,
    *,
    channels: Sequence[int] = (16, 16),
    hidden: Sequence[int] = (),
    init: str = "torch",
) -> Network:
    """Two 3×3 convolutions of 16 channels, pooled by 2, then ReLU: the benchmarks' model.

    Args:
        input_shape: (C, H, W).
        num_classes: number of logits.
        channels: of the two convolutions.
        hidden: widths of dense layers behind them.
        init: of ``SCHEMES``; see ``initialise``.
    """
    layers, features = _two_blocks("cnn_16", input_shape, channels, 3, 1, nn.ReLU)
    return Network([*layers, *dense(features, hidden, num_classes)], init)


def cnn_tanh(
    input_shape: InputShape,
    num_classes: int,
    *,
    channels: Sequence[int] = (16, 32),
    hidden: Sequence[int] = (32,),
    init: str = "torch",
) -> Network:
    """Two 5×5 convolutions with tanh, whose bounded activations suit DP-SGD's clipping.

    Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy",
    AAAI 2021.
    """
    layers, features = _two_blocks("cnn_tanh", input_shape, channels, 5, 0, nn.Tanh)
    return Network([*layers, *dense(features, hidden, num_classes, activation=nn.Tanh)], init)


def cnn_privatekt(
    input_shape: InputShape,
    num_classes: int,
    *,
    dropout: float = 0.2,
    conv_activation: bool = False,
    init: str = "glorot",
) -> Network:
    """The model of PrivateKT's authors (Qi et al., Nat. Commun. 14, 2023), 1,682,890 parameters.

    Two 5×5 convolutions with 32 and 128 channels, pooled by 2, then three dense layers of 512;
    dropout after each. ``conv_activation`` adds the ReLU that the authors' code leaves out.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((input_shape[0], 32, 128)):
        layers += [nn.Conv2d(before, after, 5), HalvingPool()]
        if conv_activation:
            layers.append(nn.ReLU())
        layers += _dropout(dropout)
    features = _features("cnn_privatekt", input_shape, layers)
    layers += [Flatten(), *dense(features, (512, 512, 512), num_classes, dropout)]
    return Network(layers, init)


def cnn_groupnorm(
    input_shape: InputShape,
    num_classes: int,
    *,
    channels: Sequence[int] = (32, 32, 64, 64),
    groups: int = 8,
    hidden: Sequence[int] = (128,),
    init: str = "torch",
) -> Network:
    """Four 3×3 convolutions with group normalisation, pooled by 2 after every second one.

    Group normalisation (Wu and He, ECCV 2018) looks at one example at a time, so that DP-SGD can
    train it.

    Args:
        input_shape: (C, H, W).
        num_classes: number of logits.
        channels: of the convolutions, multiples of ``groups``.
        groups: of channels that are normalised together.
        hidden: widths of dense layers behind them.
        init: of ``SCHEMES``; see ``initialise``.
    """
    if groups < 1:
        raise ValueError(f"groups={groups}: must be at least 1")
    if len(channels) != 4 or any(width < 1 or width % groups for width in channels):
        raise ValueError(f"channels={list(channels)}: must be four multiples of groups={groups}")
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise((input_shape[0], *channels))):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(groups, after)]
        if index % 2:
            layers.append(HalvingPool())
        layers += [nn.ReLU()]
    features = _features("cnn_groupnorm", input_shape, layers)
    layers += [Flatten(), *dense(features, hidden, num_classes)]
    return Network(layers, init)


def _two_blocks(
    model: str,
    input_shape: InputShape,
    channels: Sequence[int],
    kernel: int,
    padding: int,
    activation: type[nn.Module],
    stride: int = 1,
) -> tuple[list[nn.Module], int]:
    """Two convolutions, strided by 2 or pooled by 2, flattened.

    Args:
        model: its name, for errors.
        input_shape: (C, H, W).
        channels: of the two.
        kernel: side of their filters.
        padding: around their inputs.
        activation: behind each.
        stride: 2, or 1: pooled.

    Returns:
        The layers, and how many features they give.

    Raises:
        ValueError: wrong channels, or images too small.
    """
    if len(channels) != 2 or min(channels) < 1:
        raise ValueError(f"channels={list(channels)}: must be two integers of at least 1")
    layers: list[nn.Module] = []
    for before, after in pairwise((input_shape[0], *channels)):
        layers += [nn.Conv2d(before, after, kernel, stride, padding)]
        if stride == 1:
            layers.append(HalvingPool())
        layers += [activation()]
    return [*layers, Flatten()], _features(model, input_shape, layers)


def dense(
    features: int,
    hidden: Sequence[int],
    num_classes: int,
    dropout: float = 0.0,
    activation: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Dense layers of the widths ``hidden`` with their activations, and one of logits.

    Raises:
        ValueError: a width is no integer of at least 1, or ``dropout`` is out of range.
    """
    if any(isinstance(width, bool) or width != int(width) or width < 1 for width in hidden):
        raise ValueError(f"hidden={list(hidden)}: must be integers of at least 1")
    Dropout(dropout)  # its range holds where there is no hidden layer, too
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width), activation(), *_dropout(dropout)]
        features = width
    return [*layers, nn.Linear(features, num_classes)]


def _dropout(p: float) -> list[nn.Module]:
    layer = Dropout(p)
    if p:
        return [layer]
    return []


def _features(model: str, input_shape: InputShape, layers: Sequence[nn.Module]) -> int:
    """How many numbers ``layers`` make of an image; ValueError where nothing is left of it.

    ``model``: its name, for the error.
    """
    network = nn.Sequential(*layers).eval()
    found = 0
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # of kernels larger than the image
        found = network(torch.zeros(1, *input_shape)).numel()
    network.train()
    if not found:
        raise ValueError(
            f"input_shape={tuple(input_shape)}: too small for model {model}, whose layers "
            "shrink it to nothing; use larger images or model=mlp"
        )
    return found


class TextModel(nn.Module):
    """Token vectors, an encoder, the mean of its outputs over the text, a linear layer.

    Args:
        vocabulary: token numbers lie below it.
        width: of a token's vector.
        encoder: (N, L, width) to the same shape.
        num_classes: number of logits.
    """

    def __init__(self, vocabulary: int, width: int, encoder: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes)

    def forward(self, texts: Tensor) -> Tensor:
        """Logits (N, num_classes) of texts (N, 1, 1, L); padding counts for nothing."""
        numbers = texts.flatten(1).long()
        present = (numbers > 0).unsqueeze(2)
        states = self.encoder(self.tokens(numbers)) * present
        return self.head(states.sum(1) / present.sum(1).clamp(min=1))


class _Recurrent(nn.Module):
    """One LSTM layer, read from the first token to the last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, vectors: Tensor) -> Tensor:
        """Its state after each token, (N, L, width)."""
        return self.lstm(vectors)[0]


class _Attentive(nn.Module):
    """Transformer layers (Vaswani et al., NIPS 2017) over tokens and learned places."""

    def __init__(self, length: int, width: int, heads: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """The last layer's outputs, (N, L, width)."""
        return self.layers(vectors + self.places)


def text_lstm(
    input_shape: InputShape, num_classes: int, *, vocabulary: int, width: Count = 32
) -> TextModel:
    """One LSTM layer over token vectors.

    Args:
        input_shape: (1, 1, length).
        num_classes: number of logits.
        vocabulary: token numbers lie below it; at least 3.
        width: of a token's vector and of the layer.

    Raises:
        ValueError: no such shape or vocabulary.
    """
    _require_text(input_shape, vocabulary)
    return TextModel(vocabulary, width, _Recurrent(width), num_classes)


def text_transformer(
    input_shape: InputShape,
    num_classes: int,
    *,
    vocabulary: int,
    width: Count = 32,
    heads: Count = 4,
    depth: Annotated[int, Field(ge=1, le=1_000)] = 2,
    dropout: Decay = 0.0,
) -> TextModel:
    """Transformer layers over token vectors.

    Args:
        input_shape: (1, 1, length).
        num_classes: number of logits.
        vocabulary: token numbers lie below it; at least 3.
        width: of a token's vector, a multiple of ``heads``.
        heads: of each layer.
        depth: number of layers.
        dropout: share of outputs that training leaves out.

    Raises:
        ValueError: no such shape or vocabulary, or ``heads`` does not divide ``width``.
    """
    _require_text(input_shape, vocabulary)
    if width % heads:
        raise ValueError(f"heads={heads}: must divide width={width}")
    encoder = _Attentive(input_shape[2], width, heads, depth, dropout)
    return TextModel(vocabulary, width, encoder, num_classes)


def _require_text(input_shape: InputShape, vocabulary: int) -> None:
    """Refuse other inputs than texts, and vocabularies without a word.

    Raises:
        ValueError: names the setting.
    """
    if input_shape[:2] != (1, 1):
        raise ValueError(f"input_shape={tuple(input_shape)}: must be that of texts, (1, 1, length)")
    if vocabulary < 3:
        raise ValueError(f"vocabulary={vocabulary}: must be at least 3")


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014) that never touches a global generator.

    Set ``bits`` before training; ``Trainer`` does so in every call. A unit is kept
    when 16 fresh random bits are below ``round((1 - p) * 2**16)``, and kept units are scaled by
    exactly the inverse of that probability, so that expectations are exact whatever ``p`` is.
    Drawing 16 bits takes a tenth of the time of PyTorch's Bernoulli draws.

    Args:
        p: probability that a unit is dropped, in [0, 1).

    Attributes:
        bits: 64-bit generator of the masks.

    Raises:
        ValueError: ``p`` is outside its range.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout={p}: must be at least 0 and below 1")
        self.p = p
        self._threshold = max(1, round((1 - p) * _LEVELS))
        self._scale = _LEVELS / self._threshold
        self.bits: np.random.SFC64 | None = None

    def draw(self, out: Tensor) -> Tensor:
        """Fill ``out`` (float32, contiguous): 0 for dropped units, the scale for kept ones."""
        if self.bits is None:
            raise RuntimeError("Dropout.bits is not set: dropout in training needs a generator")
        drawn = self.bits.random_raw(-(-out.numel() // 4)).view(np.uint16)[: out.numel()]
        kept = (drawn < self._threshold).reshape(out.shape)
        if out.is_cpu:
            np.multiply(kept, np.float32(self._scale), out=out.numpy())
            return out
        return out.copy_(torch.from_numpy(kept)).mul_(self._scale)

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of ``x`` in training mode; return it unchanged otherwise."""
        if not self.training or self.p == 0:
            return x
        # Drawn in memory order, so that the mask does not depend on who runs the layer.
        if x.dim() != 4:
            return x * self.draw(torch.empty(x.shape, device=x.device))
        batch, channels, height, width = x.shape
        mask = self.draw(torch.empty(batch, height, width, channels, device=x.device))
        return x * mask.permute(0, 3, 1, 2)


class HalvingPool(nn.MaxPool2d):
    """Maximum over 2×2 windows; without a gradient to come, by comparing neighbours.

    PyTorch's kernel computes the place of every maximum, too, which takes four times as long.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H // 2, W // 2)."""
        if torch.is_grad_enabled():
            return super().forward(x)
        height = x.shape[2] // 2 * 2
        width = x.shape[3] // 2 * 2
        x = x[:, :, :height, :width].permute(0, 2, 3, 1)  # channels-last, as activations are kept
        rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
        return torch.maximum(rows[:, 0::2], rows[:, 1::2]).permute(0, 3, 1, 2)


class Flatten(nn.Module):
    """(N, C, H, W) to (N, H*W*C), channels fastest, as TensorFlow orders it.

    Activations are kept channels-last, so this order is a view where PyTorch's (channels slowest)
    would be a copy in either direction. For one channel the two orders are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the flattened view."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


def check_scheme(scheme: str) -> None:
    """Raise ValueError unless ``scheme`` is one of ``SCHEMES``."""
    if scheme not in SCHEMES:
        raise ValueError(f"init={scheme!r}: must be one of {', '.join(SCHEMES)}")


@torch.no_grad()
def initialise(module: nn.Module, rng: np.random.Generator, scheme: str = "torch") -> None:
    """Overwrite every parameter of ``module``, in the order of ``module.modules()``.

    Schemes, for linear layers and convolutions:

    * ``torch``: weight and bias uniform in ±1/sqrt(fan_in), PyTorch's own default (Kaiming uniform
      with a = sqrt(5)).
    * ``glorot``: weight uniform in ±sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio, AISTATS 2010),
      bias 0, the default of Keras.
    * ``zeros``: weight and bias 0, which suits a single linear layer only.

    Normalisation layers get weight 1, bias 0 and fresh statistics. A module of another kind with
    parameters of its own must have a method ``initialise(rng)`` that overwrites those. A module
    whose own parameters are frozen keeps them.

    Raises:
        ValueError: a module has parameters and no rule.
    """
    check_scheme(scheme)
    for child in module.modules():
        own = list(child.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            continue
        own_rule = getattr(child, "initialise", None)
        if callable(own_rule):
            own_rule(rng)
        elif isinstance(child, nn.Linear | nn.Conv2d):
            _initialise_affine(child, rng, scheme)
        elif isinstance(child, _NORMALISATIONS):
            child.reset_parameters()
        elif own:
            raise ValueError(
                f"model={type(child).__name__}: has parameters and no known initialisation; "
                "give it a method initialise(rng)"
            )


def _initialise_affine(layer: nn.Linear | nn.Conv2d, rng: np.random.Generator, scheme: str) -> None:
    outputs, inputs, *kernel = layer.weight.shape
    fan_in = inputs * math.prod(kernel)
    fan_out = outputs * math.prod(kernel)
    torch_bound = 1 / math.sqrt(fan_in)
    glorot_bound = math.sqrt(6 / (fan_in + fan_out))
    # Of weight and bias.
    bounds = {"torch": (torch_bound, torch_bound), "glorot": (glorot_bound, 0), "zeros": (0, 0)}
    for parameter, bound in zip((layer.weight, layer.bias), bounds[scheme], strict=True):
        if parameter is not None:
            parameter.copy_(_uniform(rng, tuple(parameter.shape), bound))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> torch.Tensor:
    drawn = rng.random(shape, dtype=np.float32)
    return torch.from_numpy(drawn).mul_(2 * bound).sub_(bound)
