"""Small models of texts: token numbers (N, 1, 1, L), 0 for padding, to logits.

Texts become numbers in ``murmur.learning.data.tables``. Each model is a factory as in
``murmur.learning.models``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

InputShape = tuple[int, int, int]


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
    _require(input_shape, vocabulary)
    if heads < 1 or width % heads:
        raise ValueError(f"heads={heads}: must divide width={width}")
    encoder = _Attentive(input_shape[2], width, heads, depth, dropout)
    return TextModel(vocabulary, width, encoder, num_classes)


def _require(input_shape: InputShape, vocabulary: int) -> None:
    """Refuse other inputs than texts, and vocabularies without a word.

    Raises:
        ValueError: names the setting.
    """
    if input_shape[:2] != (1, 1):
        raise ValueError(f"input_shape={tuple(input_shape)}: must be that of texts, (1, 1, length)")
    if vocabulary < 3:
        raise ValueError(f"vocabulary={vocabulary}: must be at least 3")
