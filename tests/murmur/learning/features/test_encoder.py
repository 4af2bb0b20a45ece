"""Vectors of texts: each is a function of its own text, and of every file of the encoder."""

import numpy as np
import pytest
import torch

from murmur.learning.features.encoder import Encoder, encoder

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TOKENS = 200


def write_tokenizer(folder, words):
    known = tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(known)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path):
    """An encoder that nobody has trained."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = transformers.BertConfig(vocab_size=TOKENS, intermediate_size=128, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(shape).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, ["[PAD]", "[UNK]", "chess", "mail", "plays"])
    return tmp_path


def texts(lengths, most=64):
    rng = np.random.default_rng(0)
    ids = np.zeros((len(lengths), 1, 1, most), np.float32)
    for row, length in zip(ids, lengths, strict=True):
        row[0, 0, :length] = rng.integers(1, TOKENS, length)
    return ids


def test_a_long_text_moves_no_bit_of_the_others(folder):
    network = Encoder(folder)
    before = texts([1 + row % 20 for row in range(128)])
    after = before.copy()
    after[0] = texts([64])[0]
    assert np.array_equal(network(before)[1:], network(after)[1:])


def test_it_is_the_mean_over_a_texts_own_tokens_of_unit_length(folder):
    network = Encoder(folder)
    ids = texts([7, 0])
    given = torch.from_numpy(ids[0, 0, :, :7].astype(np.int64))
    with torch.inference_mode():
        mean = network.network(input_ids=given).last_hidden_state[0].numpy().mean(axis=0)
    found = network(ids)
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "positions", "longest"), [("Bert", 32, 32), ("Roberta", 34, 32), ("MPNet", 34, 32)]
)
def test_no_text_is_too_long_and_no_token_unknown(tmp_path, kind, positions, longest):
    """An error would tell a server, which names the encoder, of a device's texts."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"vocab_size": TOKENS, "intermediate_size": 32, "max_position_embeddings": positions}
    shape = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, f"{kind}Model")(shape).save_pretrained(tmp_path)
    write_tokenizer(tmp_path, ["[PAD]", "[UNK]"])
    network = Encoder(tmp_path)
    ids = np.maximum(texts([64]), 2)
    cut = ids.copy()
    cut[..., longest:] = 0
    assert np.array_equal(network(ids), network(cut))
    cut[..., longest - 1] = 0
    assert not np.array_equal(network(ids), network(cut))  # all that it can read counts
    odd = np.tile(ids, (4, 1, 1, 1))
    odd[:, 0, 0, 5] = [0, TOKENS, -1, np.nan]
    assert len(np.unique(network(odd), axis=0)) == 1


def test_another_tokenizer_is_another_encoder_with_a_mean_of_its_own(folder, tmp_path):
    where = {"encoder": str(folder), "length": 8, "cache": str(tmp_path / "cache")}
    first = encoder(**where)
    write_tokenizer(folder, ["[PAD]", "[UNK]", "1", "chess", "2"])
    second = encoder(**where)
    assert (first.name, first.known) != (second.name, second.known)
    ids = texts([8], 8)
    assert not np.array_equal(first.map(ids), second.map(ids))
