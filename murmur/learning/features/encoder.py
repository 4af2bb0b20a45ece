"""Texts as vectors of an encoder that somebody else has published, frozen.

An encoder is a folder as Hugging Face's ``transformers`` writes it (``config.json``,
``tokenizer.json``, ``model.safetensors``), or an installed Python package that holds one, as it is
or in an archive. Nothing is downloaded. Vectors are computed where the texts are and never sent.

The vector of a text is the mean over its tokens of the last layer, of unit length (Reimers and
Gurevych, "Sentence-BERT", EMNLP 2019), less the mean of texts that say nothing: random words of the
encoder's own vocabulary. Without that the common part of all texts takes most of the length.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cache import NEEDED, cache_folder, encoder_folder, publish_folder
from murmur.learning.data.tokens import encoded, tokenizer_of
from murmur.learning.features.components import Features, Known
from murmur.random import experiment_rng

_RANDOM_TEXTS, _WORDS = 6000, 8  # texts that say nothing, and words of each
_INSTALL = "install it (pip install 'murmur-fl[encoder]')"


def licence_of(folder: Path) -> str:
    """Licence of the encoder, as its own page states it; else "not stated"."""
    page = folder / "README.md"
    lines = page.read_text(encoding="utf-8").splitlines() if page.is_file() else []
    for line in lines[:40]:
        if line.startswith("license:"):
            return line.removeprefix("license:").strip()
    return "not stated"


class Encoder:
    """A frozen network from token numbers to vectors.

    Attributes:
        folder: where its files are.
        digest: SHA-256 of its configuration, its tokenizer and its parameters.
        size: d, of a vector.
        longest: tokens of a text that it can read; None: any number.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoModel
            from transformers.utils import logging
        except ImportError as error:
            raise ValueError(
                f"features.encoder: reading it needs the package transformers; {_INSTALL}"
            ) from error
        self.folder = folder
        files = [hashlib.sha256((folder / name).read_bytes()) for name in NEEDED]
        self.digest = hashlib.sha256(b"".join(file.digest() for file in files)).hexdigest()
        logging.disable_progress_bar()  # a bar for each worker among a run's lines
        self.network: Any = AutoModel.from_pretrained(str(folder), local_files_only=True).eval()
        self.size = int(self.network.config.hidden_size)
        self.longest: int | None = None
        positions = getattr(self.network.config, "max_position_embeddings", None) or 0
        if positions > 0:
            # RoBERTa and its kin count positions from the number of their padding on.
            before = getattr(getattr(self.network, "embeddings", None), "padding_idx", -1)
            self.longest = positions - before - 1

    def __call__(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors (N, d), not centred, of token numbers (N, 1, 1, L); 0 at the end is padding.

        One text at a time: among others its last bits would tell how long they are. Nothing in a
        text is an error, which would tell of it: what follows its ``longest`` part does not count,
        and a number that the vocabulary lacks is padding.
        """
        import torch

        out = np.empty((len(images), self.size), np.float32)
        texts = images.reshape(len(images), -1)[:, : self.longest]
        known = (texts >= 0) & (texts < self.network.config.vocab_size)
        with torch.inference_mode():
            for row, ids in zip(out, np.where(known, texts, 0), strict=True):
                length = max(1, len(np.trim_zeros(ids, "b")))  # a text without words has one place
                text = torch.from_numpy(ids[None, :length].astype(np.int64))
                mean = self.network(input_ids=text).last_hidden_state.mean(dim=1)
                row[:] = torch.nn.functional.normalize(mean, dim=1)[0].numpy()
        return out

    def texts(self, texts: list[str], length: int) -> NDArray[np.float32]:
        """Vectors (n, d), not centred, of ``texts``, of which the first ``length`` tokens count."""
        return self(encoded(texts, str(self.folder), length))

    def of_nothing(self, length: int) -> NDArray[np.float32]:
        """M (d,): the mean vector of random words of the vocabulary."""
        known = tokenizer_of(str(self.folder)).get_vocab()
        vocabulary = sorted(word for word in known if word.isalpha())
        drawn = experiment_rng(0, "random words").choice(vocabulary, (_RANDOM_TEXTS, _WORDS))
        return self.texts([" ".join(words) for words in drawn], length).mean(axis=0)


def encoder(
    *, encoder: str | None, length: int = 64, names: object = None, cache: str | None = None
) -> Features:
    """Vectors of texts by a published encoder, less the mean of texts that say nothing.

    Args:
        encoder: a folder, or an installed package that holds one (``encoder_folder``).
        length: tokens of a text that count, as the data set keeps them.
        names: a line for each class, which only ``model.start=names`` reads.
        cache: folder for what is computed once.

    Raises:
        ValueError, DataError: there is no such encoder, or transformers is not installed.
    """
    folder = encoder_folder(encoder, cache)
    network = Encoder(folder)
    middle = _middle(network, length, cache)

    def vectors(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return network(images) - middle

    def texts(lines: list[str]) -> NDArray[np.float32]:
        return network.texts(lines, length) - middle

    known = Known(f"{network.digest[:32]}{length:032d}", network.size, texts, licence_of(folder))
    return Features.ready(f"encoder {network.digest} {length}", vectors, known, slow=True)


def _middle(network: Encoder, length: int, cache: str | None) -> NDArray[np.float32]:
    """M (d,), computed once and kept."""
    folder = cache_folder(cache) / f"encoder-mean-{network.digest[:16]}-{length}"
    if not folder.is_dir():
        with publish_folder(folder) as temporary:
            np.save(temporary / "mean.npy", network.of_nothing(length))
    found: NDArray[np.float32] = np.load(folder / "mean.npy")
    return found
