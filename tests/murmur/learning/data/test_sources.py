import socket
import urllib.error
import urllib.request

import pytest
import torchvision.datasets

from murmur.learning.data import datasets as sources
from murmur.learning.data.datasets import SOURCES, locate
from murmur.learning.data.examples import DataError

SVHN = SOURCES["SVHN"]


@pytest.fixture
def no_network(monkeypatch):
    """A network that answers nothing; records the time each connection would have waited."""
    waits = []

    def urlopen(*_args, **_settings):
        waits.append(socket.getdefaulttimeout())
        raise urllib.error.URLError("unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return waits


class FakeSVHN:
    """Stands in for torchvision's class: writes what a download would."""

    calls = 0

    def __init__(self, root, split, download):
        assert download
        FakeSVHN.calls += 1
        (root / f"{split}_32x32.mat").write_bytes(b"content")


@pytest.mark.parametrize("name", [s.name for s in SOURCES.values() if s.downloads])
def test_without_a_network_the_error_says_what_to_do(name, no_network, tmp_path):
    with pytest.raises(DataError, match=r"downloading failed.*MURMUR_DATA") as caught:
        locate(SOURCES[name], root=tmp_path, cache=tmp_path / "cache", download=True)
    assert f"{name} is not in dataset.root={tmp_path}" in str(caught.value)
    assert SOURCES[name].alternatives[0][0] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "downloads").iterdir()) == []


def test_a_dead_network_is_given_up_soon_and_the_limit_is_taken_back(no_network, tmp_path):
    with pytest.raises(DataError):
        locate(SVHN, root=None, cache=tmp_path, download=True)
    assert no_network and all(0 < wait <= 10 for wait in no_network)
    assert socket.getdefaulttimeout() is None


def test_no_download_where_none_is_wanted(no_network, tmp_path):
    with pytest.raises(DataError, match=r"dataset\.root is not set; .*dataset\.download=true"):
        locate(SVHN, root=None, cache=tmp_path, download=False)
    assert no_network == []


def test_a_root_that_does_not_exist_is_named_at_once(no_network, tmp_path):
    with pytest.raises(DataError, match=r"^dataset\.root=.*nowhere: there is no such folder"):
        locate(SVHN, root=tmp_path / "nowhere", cache=tmp_path, download=True)
    assert no_network == []


def test_a_download_is_kept_for_the_next_time(monkeypatch, tmp_path):
    monkeypatch.setattr(torchvision.datasets, "SVHN", FakeSVHN)
    FakeSVHN.calls = 0
    first = locate(SVHN, root=None, cache=tmp_path, download=True)
    second = locate(SVHN, root=None, cache=tmp_path, download=True)
    assert first == second
    assert [path.name for path in first] == ["train_32x32.mat", "test_32x32.mat"]
    assert FakeSVHN.calls == 2  # one for each split


def test_the_users_folder_comes_before_a_download(monkeypatch, tmp_path):
    monkeypatch.setattr(torchvision.datasets, "SVHN", FakeSVHN)
    locate(SVHN, root=None, cache=tmp_path / "cache", download=True)
    root = tmp_path / "root" / "SVHN"
    root.mkdir(parents=True)
    for name in SVHN.alternatives[0]:
        (root / name).write_bytes(b"mine")
    found = locate(SVHN, root=tmp_path / "root", cache=tmp_path / "cache", download=True)
    assert {path.parent for path in found} == {root}


def test_an_interrupted_download_leaves_nothing(monkeypatch, tmp_path):
    class Interrupted(FakeSVHN):
        def __init__(self, root, split, download):
            if split == "test":
                raise KeyboardInterrupt
            super().__init__(root, split, download)

    monkeypatch.setattr(torchvision.datasets, "SVHN", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        locate(SVHN, root=None, cache=tmp_path, download=True)
    assert list((tmp_path / "downloads").iterdir()) == []


def test_every_archive_with_an_official_sum_is_checked(tmp_path):
    for name in ("MNIST", "FashionMNIST", "SVHN", "CIFAR10"):
        for file in SOURCES[name].alternatives[0]:
            path = tmp_path / file
            path.write_bytes(b"not the official content")
            with pytest.raises(DataError, match=rf"{file} is damaged.*MD5"):
                sources.verify(SOURCES[name], (path,))
