"""Random numbers of an experiment.

They are derived from (seed, purpose, round, client) and nothing else. A result must not depend on
scheduling, on the number of workers or on which other parts drew before; so nothing shares a
generator. Whoever needs randomness names its purpose and gets a stream of its own. Privacy noise
never comes from here: see ``murmur.privacy.noise``.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from threading import RLock
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_TORCH_GENERATORS = RLock()


class StreamKey(ISeedSequence):
    """Gives ``key``, uint64 (2,), to a Philox generator.

    The very generator of ``Philox(key=key)``, which however draws 128 bits from the operating
    system for a seed that it then does not use: two thirds of the time that it takes to make one.
    """

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """The key; ValueError for anything else than two words of 64 bits."""
        if (n_words, np.dtype(dtype)) != (2, np.dtype(np.uint64)):
            raise ValueError(f"n_words={n_words} of {dtype}: a stream's key is two of uint64")
        return self.key


def experiment_rng(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A generator that is a pure function of its four arguments, on every platform.

    Philox-4x64, keyed by the first 128 bits of SHA-256 over the arguments. The hash makes any two
    distinct arguments independent streams; adding a purpose never changes an existing one.

    Args:
        seed: the run's seed, any integer of at least 0.
        purpose: what the randomness is for, such as ``"partition"`` or ``"local-training"``.
        round: the round it belongs to, 0 where the run has it only once.
        client: the client's id, 0 where it belongs to no client.

    Raises:
        ValueError: an argument is negative, not an integer, or the purpose is empty.
    """
    for name, value in (("seed", seed), ("round", round), ("client", client)):
        if type(value) is int and value >= 0:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{name}={value!r}: must be an integer of at least 0")
    if not purpose:
        raise ValueError(f"purpose={purpose!r}: must name what the randomness is for")
    # The purpose goes last, so that no separator inside it can imitate another argument.
    message = f"murmur/experiment/1:{seed}:{round}:{client}:{purpose}".encode()
    key = np.frombuffer(hashlib.sha256(message).digest()[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(StreamKey(key)))  # type: ignore[arg-type]


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """PyTorch's global generators as fresh from ``seed`` inside, and as they were afterwards.

    For layers that know no other generator, such as ``nn.Dropout``. The generators belong to the
    process: a second thread waits to enter.
    """
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _TORCH_GENERATORS, torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which prints and keeps the call stack for every absent accelerator:
        # a third of a small client's time.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
