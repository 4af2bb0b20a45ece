"""Small models of texts: token numbers (N, 1, 1, L), 0 for padding, to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

InputShape = tuple[int, int, int]


class TextModel(nn.Module):
    """Token vectors, an encoder (N, L, width) to the same shape, their mean, a linear layer."""

    def __init__(self, vocabulary: int, width: int, encoder: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes)

    def forward(self, texts: Tensor) -> Tensor:
        """Logits (N, num_classes)."""
        numbers = texts.flatten(1).long()
        present = (numbers > 0).unsqueeze(2)
        states = self.encoder(self.tokens(numbers)) * present
        return self.head(states.sum(1) / present.sum(1).clamp(min=1))


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.lstm(vectors)[0]


class _Attentive(nn.Module):
    def __init__(self, length: int, width: int, heads: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.layers(vectors + self.places)


def text_lstm(
    input_shape: InputShape, num_classes: int, *, vocabulary: int, width: int = 32
) -> TextModel:
    """One LSTM layer over token vectors of ``width``."""
    _require(input_shape, vocabulary)
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
    """``depth`` transformer layers with ``heads`` heads over token vectors of ``width``."""
    _require(input_shape, vocabulary)
    if heads < 1 or width % heads:
        raise ValueError(f"heads={heads}: must divide width={width}")
    encoder = _Attentive(input_shape[2], width, heads, depth, dropout)
    return TextModel(vocabulary, width, encoder, num_classes)


def _require(input_shape: InputShape, vocabulary: int) -> None:
    if input_shape[:2] != (1, 1):
        raise ValueError(f"input_shape={tuple(input_shape)}: must be that of texts, (1, 1, length)")
    if vocabulary < 3:
        raise ValueError(f"vocabulary={vocabulary}: must be at least 3")
