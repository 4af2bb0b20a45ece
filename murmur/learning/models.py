"""The models of the algorithms' papers, each a factory ``(input_shape, num_classes, **settings)``.

``input_shape`` is (channels, height, width). A model of images is a plain sequence of layers
without batch normalisation, whose statistics would leak what the parameters' noise protects.
Pooling comes before a monotone activation: the same function, on a quarter of the values. Each has
a file in ``conf/model``; settings that it does not take, and images too small for it, are refused
with a ValueError that names them.

Models of texts read token numbers (N, 1, 1, L), 0 for padding, which texts become in
``murmur.learning.data.tables``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from murmur.learning.layers import Dropout, Flatten, HalvingPool, check_scheme

InputShape = tuple[int, int, int]


class Network(nn.Sequential):
    """Layers in sequence, and the scheme by which their parameters are drawn.

    Args:
        layers: in their order.
        init: see ``murmur.learning.layers``.

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
        init: see ``murmur.learning.layers``.
    """
    if any(isinstance(width, bool) or width != int(width) or width < 1 for width in hidden):
        raise ValueError(f"hidden={list(hidden)}: must be integers of at least 1")
    layers = _dense(math.prod(input_shape), hidden, num_classes, dropout)
    return Network([Flatten(), *layers], init)


class Centred(nn.Module):
    """A linear layer on directions away from a centre: W v/max(‖v‖, q) + a, v = x/‖x‖ − c.

    c = ``centre`` (d,) is a parameter like others, which an algorithm may release and none trains
    by gradients; q = ``radius``: of vectors shorter than this only a part of the length is left.
    """

    init = "zeros"

    def __init__(self, features: int, num_classes: int, radius: float) -> None:
        super().__init__()
        self.radius = radius
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
    if not radius > 0:
        raise ValueError(f"radius={radius}: must be above 0")
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
        init: see ``murmur.learning.layers``.
    """
    if downsample not in ("stride", "pool"):
        raise ValueError(f"downsample={downsample!r}: must be stride or pool")
    stride = 1
    if downsample == "stride":
        stride = 2
    layers, features = _two_blocks("cnn_small", input_shape, channels, 5, 0, nn.ReLU, stride)
    return Network([*layers, *_dense(features, hidden, num_classes, dropout)], init)


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
        init: see ``murmur.learning.layers``.
    """
    layers, features = _two_blocks("cnn_16", input_shape, channels, 3, 1, nn.ReLU)
    return Network([*layers, *_dense(features, hidden, num_classes)], init)


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
    return Network([*layers, *_dense(features, hidden, num_classes, activation=nn.Tanh)], init)


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
    size = _feature_map("cnn_privatekt", input_shape, [(5, 0), (5, 0)])
    layers: list[nn.Module] = []
    for before, after in pairwise((input_shape[0], 32, 128)):
        layers += [nn.Conv2d(before, after, 5), HalvingPool()]
        if conv_activation:
            layers.append(nn.ReLU())
        layers += _dropout(dropout)
    layers += [Flatten(), *_dense(128 * size[0] * size[1], (512, 512, 512), num_classes, dropout)]
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
        init: see ``murmur.learning.layers``.
    """
    if len(channels) != 4 or any(width < 1 or width % groups for width in channels):
        raise ValueError(f"channels={list(channels)}: must be four multiples of groups={groups}")
    size = _feature_map("cnn_groupnorm", input_shape, [(3, 1), (3, 1)])
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise((input_shape[0], *channels))):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(groups, after)]
        if index % 2:
            layers.append(HalvingPool())
        layers += [nn.ReLU()]
    layers += [Flatten(), *_dense(channels[3] * size[0] * size[1], hidden, num_classes)]
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
    height, width = _feature_map(model, input_shape, [(kernel, padding)] * 2, stride)
    layers: list[nn.Module] = []
    for before, after in pairwise((input_shape[0], *channels)):
        layers += [nn.Conv2d(before, after, kernel, stride, padding)]
        if stride == 1:
            layers.append(HalvingPool())
        layers += [activation()]
    return [*layers, Flatten()], channels[1] * height * width


def _dense(
    features: int,
    hidden: Sequence[int],
    num_classes: int,
    dropout: float = 0.0,
    activation: type[nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Dense layers of the widths ``hidden`` with their activations, and one of logits."""
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


def _feature_map(
    model: str, input_shape: InputShape, blocks: Sequence[tuple[int, int]], stride: int = 1
) -> tuple[int, int]:
    """Height and width after blocks of convolutions.

    Args:
        model: its name, for errors.
        input_shape: (C, H, W).
        blocks: (kernel, padding), each strided by 2 or else pooled by 2.
        stride: 2, or 1: pooled.

    Raises:
        ValueError: nothing is left of the images.
    """
    height, width = input_shape[1:]
    for kernel, padding in blocks:
        # A stride of 2 rounds the number of places up, pooling after a stride of 1 down.
        height, width = ((size + 2 * padding - kernel + stride) // 2 for size in (height, width))
        if min(height, width) < 1:
            raise ValueError(
                f"input_shape={tuple(input_shape)}: too small for model {model}, whose layers "
                "shrink it to nothing; use larger images or model=mlp"
            )
    return height, width


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
    input_shape: InputShape, num_classes: int, *, vocabulary: int, width: int = 32
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
    width: int = 32,
    heads: int = 4,
    depth: int = 2,
    dropout: float = 0.0,
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
    if heads < 1 or width % heads:
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
