"""A device's data are what its owner's node-config names, checked against the run's."""

import numpy as np
import pytest

from fl_app.config.settings import DeviceDataSpec, pool_digest
from fl_app.device.data import OwnData, device_population, require_readable
from fl_app.device.node_settings import DeviceError, OwnerSettings
from fl_app.device.service import Device as Answering
from murmur.learning.features import pca
from murmur.learning.features.components import Features, Known

TERMS = DeviceDataSpec([1, 2, 2], 3)


def shard(path, labels, shape=(2, 2)):
    images = np.linspace(0, 1, len(labels) * int(np.prod(shape)), dtype=np.float32)
    np.savez(path, images=images.reshape(len(labels), *shape), labels=np.array(labels))


def build(tmp_path, terms=TERMS, **own):
    known = {"clients": (4,), "data": str(tmp_path / "data.npz"), "public": None, **own}
    own = OwnerSettings(**known)
    people = device_population(own, terms)
    return people, OwnData(own, terms, tmp_path)


def test_all_of_the_data_are_the_clients_own(tmp_path):
    shard(tmp_path / "data.npz", [0, 1, 1])
    people, data = build(tmp_path)
    assert data.of(4).indices.tolist() == [0, 1, 2]
    assert data.of(4).labels.tolist() == [0, 1, 1]
    assert len(people.dataset.train) == len(people.dataset.test) == 0
    assert people.dataset.num_classes == 3  # the run's, though the device lacks one


def test_several_clients_on_one_node_have_a_file_each(tmp_path):
    shard(tmp_path / "c1.npz", [0, 1])
    shard(tmp_path / "c7.npz", [2])
    _, data = build(tmp_path, clients=(1, 7), data=str(tmp_path / "c{client}.npz"))
    assert {client: data.of(client).labels.tolist() for client in (1, 7)} == {1: [0, 1], 7: [2]}


def test_several_clients_may_not_share_their_data(tmp_path):
    shard(tmp_path / "data.npz", [0])
    with pytest.raises(DeviceError, match=r"\{client\}"):
        build(tmp_path, clients=(1, 2))


def test_a_row_that_cannot_be_read_is_blank_and_its_owner_is_told_file_and_line(tmp_path):
    (tmp_path / "own.csv").write_text("label,a,b,c,d\n2,1,2,3,4\n1,1,2,x,4\n")
    _, data = build(tmp_path, data=str(tmp_path / "own.csv"))
    found = data.of(4)
    assert found.labels.tolist() == [2, 0]
    assert found.images[0].any() and not found.images[1].any()
    assert "1 of 2 rows" in log_of(tmp_path) and "own.csv, line 3" in log_of(tmp_path)


def log_of(folder):
    return (folder / "errors.log").read_text()


WRONG = {
    "no file": lambda path: None,
    "no archive": lambda path: path.write_bytes(b"no archive"),
    "another shape": lambda path: shard(path, [0, 1], (3, 3)),
    "no rows": lambda path: shard(path, []),
    "no class is known": lambda path: shard(path, [3, 4]),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("sizes", [None, [1, 1, 1, 1, 2]])
def test_data_that_cannot_be_read_as_a_whole_are_blank_in_a_run_and_refused_at_the_start(
    tmp_path, wrong, sizes
):
    WRONG[wrong](tmp_path / "data.npz")
    _, data = build(tmp_path, DeviceDataSpec([1, 2, 2], 3, sizes=sizes))
    found = data.of(4)
    assert not found.images.any() and not found.labels.any()
    assert len(found) == (2 if sizes or wrong == "no class is known" else 1)
    assert "client 4" in log_of(tmp_path)
    words = {"clients": "4", "data": str(tmp_path / "data.npz"), "shape": "1,2,2", "classes": 3}
    with pytest.raises(DeviceError, match="the data of client 4 cannot be read: "):
        require_readable(words, tmp_path)
    with pytest.raises(DeviceError, match="the data of client 4"):
        Answering({**words, "state": str(tmp_path)})


def test_device_starts_on_data_of_which_single_rows_cannot_be_read_and_logs_them(tmp_path):
    shard(tmp_path / "data.npz", [0, 9, 1])
    words = {"clients": "4", "data": str(tmp_path / "data.npz"), "shape": "1,2,2", "classes": 3}
    require_readable(words, tmp_path)
    assert "1 of 3 rows" in log_of(tmp_path) and "class '9'" in log_of(tmp_path)
    with pytest.raises(DeviceError, match="has 3 examples, its owner has published 2"):
        require_readable({**words, "sizes": "1,1,1,1,2"}, tmp_path)


@pytest.mark.parametrize("published", [2, 3, 5])
def test_a_run_gets_as_many_records_as_were_published(tmp_path, published):
    shard(tmp_path / "data.npz", [1, 2, 1])
    found = build(tmp_path, DeviceDataSpec([1, 2, 2], 3, sizes=[1, 1, 1, 1, published]))[1].of(4)
    assert found.labels.tolist() == [1, 2, 1, 0, 0][:published]
    assert len(found.images) == published and not found.images[3:].any()
    assert (tmp_path / "errors.log").exists() == (published != 3)


def test_blank_records_are_as_many_as_were_published(tmp_path):
    _, data = build(tmp_path, DeviceDataSpec([1, 2, 2], 3, sizes=[1, 1, 1, 1, 2]))
    assert data.blank(4).images.shape == (2, 1, 2, 2) and not data.blank(4).images.any()
    assert len(build(tmp_path)[1].blank(4)) == 1


@pytest.mark.parametrize("how", ["raises", "overflows"])
def test_a_row_of_which_no_features_can_be_computed_is_blank_alone_and_logged(tmp_path, how):
    """A server names the features: a refusal, which costs nothing, would tell of such rows."""

    def fails(images):
        odd = (images == 1).any(axis=(1, 2, 3))  # the last pixel of the last row
        if odd.any() and how == "raises":
            raise IndexError("a token beyond the vocabulary")
        return np.where(odd[:, None], np.inf, images.reshape(len(images), -1))

    shard(tmp_path / "data.npz", [0, 1, 1])
    _, data = build(tmp_path, DeviceDataSpec([1, 2, 2], 3, sizes=[1, 1, 1, 1, 3]))
    data.fitted = Known("", 4)
    data.features = Features.ready("fails", fails, data.fitted)
    found = data.of(4)
    assert found.images.shape == (3, 4, 1, 1) and found.labels.tolist() == [0, 1, 0]
    assert found.images[:2].any(axis=(1, 2, 3)).all() and not found.images[2].any()
    assert "1 of 3 rows" in log_of(tmp_path)


def test_features_that_fail_for_no_single_row_leave_blank_records(tmp_path):
    def fails(images):
        if len(images) > 1 and images.any():
            raise MemoryError("so many rows")
        return images.reshape(len(images), -1)

    shard(tmp_path / "data.npz", [0, 1, 1])
    _, data = build(tmp_path)
    data.fitted = Known("", 4)
    data.features = Features.ready("fails", fails, data.fitted)
    assert not data.of(4).images.any() and data.of(4).labels.tolist() == [0, 0, 0]
    assert "MemoryError" in log_of(tmp_path)


def test_public_pool_must_be_that_of_the_run(tmp_path):
    shard(tmp_path / "data.npz", [0, 1])
    pool = np.ones((3, 1, 2, 2), np.float32)
    np.savez(tmp_path / "public.npz", images=pool)
    terms = DeviceDataSpec([1, 2, 2], 3, public=pool_digest(pool))
    people, _ = build(tmp_path, terms, public=str(tmp_path / "public.npz"))
    assert people.public.shape == (3, 1, 2, 2)
    with pytest.raises(DeviceError, match="names none"):
        build(tmp_path, terms)
    other = DeviceDataSpec([1, 2, 2], 3, public=pool_digest(pool * 0))
    with pytest.raises(DeviceError, match="not that of the run"):
        build(tmp_path, other, public=str(tmp_path / "public.npz"))


def featured_device(tmp_path, features, **more):
    """A device of 8×8 images whose run computes features; ``more`` goes into its public file."""
    pool = np.random.default_rng(0).random((30, 1, 8, 8), np.float32)
    shard(tmp_path / "data.npz", [0, 1, 2], (8, 8))
    np.savez(tmp_path / "public.npz", images=pool, **more)
    terms = DeviceDataSpec([1, 8, 8], 3, public=pool_digest(pool), features=features)
    own = OwnerSettings((4,), str(tmp_path / "data.npz"), str(tmp_path / "public.npz"))
    return pool, lambda: device_population(own, terms, pca(components=6))


def test_features_are_those_that_came_with_the_pool(tmp_path):
    pool, _ = featured_device(tmp_path, None)
    fitted = pca(components=6).fit(pool[:20])  # not what this device would fit itself
    _, build = featured_device(tmp_path, fitted.digest, **fitted.arrays())
    people = build()
    assert people.dataset.input_shape == (6, 1, 1)
    assert people.public.shape == (30, 6, 1, 1)
    assert people.fitted.digest == fitted.digest


def test_features_of_a_pool_that_came_alone_are_fitted_here(tmp_path):
    pool, _ = featured_device(tmp_path, None)
    fitted = pca(components=6).fit(pool)
    assert featured_device(tmp_path, fitted.digest)[1]().fitted.digest == fitted.digest


def test_features_of_another_run_are_refused(tmp_path):
    with pytest.raises(DeviceError, match="features"):
        featured_device(tmp_path, "0" * 64)[1]()


@pytest.mark.parametrize("terms", [DeviceDataSpec(), DeviceDataSpec([1, 2, 2])])
def test_owner_who_does_not_say_what_the_data_are_like_is_asked_to(tmp_path, terms):
    with pytest.raises(DeviceError, match="node-config does not say"):
        build(tmp_path, terms)


def test_device_without_data_refuses_and_reads_nothing_that_the_server_names(tmp_path):
    with pytest.raises(DeviceError, match="names no data"):
        build(tmp_path, data=None)


@pytest.mark.parametrize(("words", "ids"), [(3, (3,)), ("7, 2", (2, 7)), ("", ()), ("4 5", (4, 5))])
def test_clients_of_a_node_config(words, ids):
    assert OwnerSettings.of({"clients": words}).clients == ids


@pytest.mark.parametrize("words", ["a", "1,1", "-2", 1.5])
def test_malformed_clients_are_refused(words):
    with pytest.raises(DeviceError, match="clients"):
        OwnerSettings.of({"clients": words})
