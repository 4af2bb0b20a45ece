"""The four distributions of a release carry one version, one license and complete metadata."""

import tomllib
from pathlib import Path

import pytest
import yaml
from flwr.supercore.utils import parse_app_spec

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))]
SUPPORTED = ">=3.11,<3.14"


def project(folder):
    """The table `[project]` of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_distributions_and_the_citation_have_one_version():
    versions = {project(folder)["version"] for folder in FOLDERS}
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert len(FOLDERS) == 4 and versions == {cited}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {cited}\n" in changes


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_metadata_are_complete(folder):
    found = project(folder)
    assert found["license"] == "Apache-2.0" and found["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / found["readme"]).read_text(encoding="utf-8").startswith("# ")
    assert found["requires-python"] == SUPPORTED
    assert found["description"] and found["keywords"] and found["authors"]
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in found["classifiers"]


def test_flower_names_no_release_candidate_of_a_hub():
    assert parse_app_spec("@murmur/murmur-fl==1.0.0") == ("@murmur/murmur-fl", "1.0.0")
    with pytest.raises(ValueError, match="Invalid app version"):
        parse_app_spec("@murmur/murmur-fl==1.0.0rc1")
