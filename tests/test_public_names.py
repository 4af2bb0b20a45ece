"""``murmur.privacy`` and ``murmur.learning`` offer what their page lists, and load it when used."""

import doctest
import subprocess
import sys

import pytest

from murmur import learning, privacy


@pytest.mark.parametrize("package", [learning, privacy])
def test_the_example_of_the_page_runs(package):
    assert doctest.testmod(package, raise_on_error=True).attempted > 5


@pytest.mark.parametrize("package", [learning, privacy])
def test_every_name_of_the_page_is_there_and_another_is_refused_by_name(package):
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_importing_the_packages_loads_neither_pytorch_nor_scipy():
    modules = "sys, murmur.learning, murmur.privacy"
    code = f"import {modules}; print(*sorted({{'torch', 'scipy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
