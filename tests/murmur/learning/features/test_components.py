"""Features: whitened on the pool alone, the same for everybody, kept on disk where large."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from murmur.learning.data.datasets import digits
from murmur.learning.data.examples import DataError
from murmur.learning.features import backbone, pca, scattering
from murmur.learning.features import components as caching
from murmur.learning.features.components import Components, featured


@pytest.fixture(scope="module")
def data():
    return digits()


POOL = np.arange(300)


def pool(data):
    return data.train.images[POOL]


def test_components_of_the_pool_are_white_and_every_vector_has_length_one(data):
    fitted = pca(components=20).fit(pool(data))
    flat = pool(data).reshape(300, -1)
    white = (flat - fitted.mean) @ fitted.projection.T
    np.testing.assert_allclose(white.T @ white / 300, np.eye(20), atol=1e-3)
    vectors = pca(components=20).apply(fitted, data.test.images)[:, :, 0, 0]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_constant_pixels_and_small_pools_leave_fewer_components(data):
    assert len(pca(components=400).fit(pool(data)).projection) < 64
    assert len(pca(components=400).fit(pool(data)[:10]).projection) <= 9
    with pytest.raises(ValueError, match="public=1"):
        pca().fit(pool(data)[:1])


def test_only_the_pool_is_fitted_on(data):
    _, fitted = featured(data, scattering(components=30), POOL)
    assert fitted.digest == scattering(components=30).fit(pool(data)).digest
    assert fitted.digest != scattering(components=30).fit(pool(data)[:-1]).digest


def test_result_does_not_depend_on_the_number_of_threads(data):
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            fitted = scattering(components=30).fit(pool(data))
            found.append(scattering().apply(fitted, data.test.images))
    assert np.array_equal(*found)


def test_features_are_a_data_set_of_their_own(data):
    result, _ = featured(data, pca(components=20), POOL)
    assert result.input_shape == (20, 1, 1)
    assert result.train.images.shape == (len(data.train), 20, 1, 1)
    assert result.train.labels is data.train.labels


def test_cache_gives_the_same_and_a_damaged_one_is_named(data, tmp_path, monkeypatch):
    fresh, fitted = featured(data, pca(components=20), POOL)
    monkeypatch.setattr(caching, "_MIN_CACHED_BYTES", 0)
    for _ in range(2):
        cached, again = featured(data, pca(components=20), POOL, tmp_path)
        assert np.array_equal(cached.train.images, fresh.train.images)
        assert again.digest == fitted.digest
    (folder,) = tmp_path.iterdir()
    (folder / "train.npy").write_bytes(b"")
    with pytest.raises(DataError, match=str(folder)):
        featured(data, pca(components=20), POOL, tmp_path)


def test_what_was_fitted_travels_as_arrays(data):
    fitted = pca(components=20).fit(pool(data))
    copy = Components.of(fitted.arrays())
    assert copy is not None
    assert copy.digest == fitted.digest
    assert Components.of({}) is None
    with pytest.raises(ValueError, match="finite"):
        Components(fitted.mean * np.nan, fitted.projection)


def test_backbone_computes_the_layer_before_the_last(tmp_path, data):
    import torch
    import torchvision
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torchvision.models.resnet18()
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    features = backbone(
        architecture="resnet18",
        weights=str(tmp_path / "weights.safetensors"),
        size=32,
        components=10,
    )
    assert features.map(data.test.images[:2]).shape == (2, 512)
    fitted = features.fit(pool(data)[:20])
    assert features.apply(fitted, data.test.images[:5]).shape == (5, 10, 1, 1)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights": None}, "weights=null"),
        ({"architecture": "resnet999"}, "architecture=resnet999"),
        ({"architecture": "squeezenet1_0"}, "architecture=squeezenet1_0"),
        ({"weights": "nowhere.safetensors"}, "weights=nowhere"),
        ({"size": 0}, "size=0"),
    ],
)
def test_bad_backbones_are_refused(changed, words):
    settings = {"architecture": "resnet18", "weights": "file.safetensors"}
    with pytest.raises(ValueError, match=words):
        backbone(**{**settings, **changed})


def test_components_of_another_pool_are_as_if_the_map_were_computed_anew(data):
    for public in (POOL, POOL[:200]):
        found, fitted = featured(data, scattering(components=20), public)
        for part, made in ((data.train, found.train), (data.test, found.test)):
            fresh = scattering(components=20).apply(fitted, part.images)
            assert np.array_equal(made.images, fresh)


def test_first_block_is_as_apply_gives_it_also_of_another_pool_and_of_nothing(data):
    features = scattering(components=20)
    for public in (POOL, POOL[:200]):
        fitted = features.fit(data.train.images[public])
        found = features.first_block(fitted, data.train, "scattering")
        assert np.array_equal(found, features.apply(fitted, data.train.images[:512]))
    assert len(features.first_block(fitted, data.train.take(POOL[:0]), "scattering")) == 0
