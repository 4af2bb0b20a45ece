"""Words that YAML changes before anybody reads them, and columns that are named 0, 1, 2."""

import numpy as np
import pytest
from omegaconf import OmegaConf

from fl_app.api import run
from fl_app.config.compose import compose
from fl_app.config.errors import ConfigError
from fl_app.config.settings import DeviceDataSpec
from fl_app.device import data as device_data
from fl_app.device.data import OwnData, load_own
from fl_app.device.node_settings import OwnerSettings
from fl_app.run.population import population
from murmur.learning.data.examples import DataError
from murmur.learning.data.own_data import image_folder
from murmur.learning.data.tables import table
from murmur.learning.features.bins import Bins
from tests.inputs.readers import write
from tests.inputs.test_files import folder_of

LISTS = {  # what stands in a file, and how the file's author means it
    "truth": ("[yes, no]", ["yes", "no"], r"not True, as which YAML reads yes, on, true"),
    "switches": ("[on, off, auto]", ["on", "off", "auto"], r"write 'yes' with the quotes"),
    "nothing": ("[null, one]", ["null", "one"], r"not None, .*write 'null' with"),
    "not a number": ("[.nan, 1]", [".nan", "1"], "not nan"),
    "boundless": ("[.inf, 1]", [".inf", "1"], "not inf"),
    "times": ("[14:30, 15:45]", ["14:30", "15:45"], r"lists 870, .* reads 14:30 .*write '14:30'"),
    "some times": ("[08:30, 14:30]", ["08:30", "14:30"], "write '14:30' with the quotes"),
    "hexadecimal": ("[0x1F, 0x2A]", ["0x1F", "0x2A"], "write '0x1F' with the quotes"),
    "exponents": ("[1e3, 2e3, x]", ["1e3", "2e3", "x"], "write '1e3' with the quotes"),
    "zeros before": ("[010, 020]", ["010", "020"], "write '010' with the quotes"),
    "underscores": ("[1_000, x]", ["1_000", "x"], "write '1_000' with the quotes"),
    "Norwegian": ("[dk, no, se]", ["dk", "no", "se"], "not False, as which YAML reads no, off"),
}


def of_yaml(text):
    """As a file of conf/ is read."""
    return OmegaConf.to_container(OmegaConf.create(text))


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("form", ["csv", "strings"])
def test_a_list_of_a_schema_that_yaml_has_changed_is_refused_with_the_quotes(tmp_path, kind, form):
    written, meant, said = LISTS[kind]
    rows = {"a": meant, "label": [str(row % 2) for row in range(len(meant))]}
    path = str(write(tmp_path, form, rows))
    schema = of_yaml(f"a: {{list: {written}}}")
    with pytest.raises((DataError, ValueError), match=said):
        table(path=path, schema=schema, test_fraction=0)
    data = table(path=path, schema={"a": {"list": meant}}, test_fraction=0)
    assert data.train.images.ravel().tolist() == list(range(len(meant)))


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("form", ["csv", "strings"])
def test_classes_that_yaml_has_changed_are_refused_with_the_quotes(tmp_path, kind, form):
    written, meant, said = LISTS[kind]
    rows = {"a": [0.5] * len(meant), "label": meant}
    path = str(write(tmp_path, form, rows))
    said = said.partition("lists ")[0] or "write"
    with pytest.raises((DataError, ValueError), match=said):
        table(path=path, classes=of_yaml(f"a: {written}")["a"], test_fraction=0)
    data = table(path=path, classes=meant, test_fraction=0)
    assert data.train.labels.tolist() == list(range(len(meant)))


def test_folders_are_told_the_quotes_as_well(tmp_path):
    root = folder_of(tmp_path / "x", "yes/a", "no/b")
    with pytest.raises(ValueError, match=r"^classes=.*not True.*write 'yes'"):
        image_folder(root=root, size=6, classes=of_yaml("a: [yes, no]")["a"], cache=tmp_path)


def test_words_of_the_command_line_stay_words(tmp_path):
    rows = {"a": ["yes", "14:30", "0x1F"], "label": ["no", "on", "2020-01-01"]}
    path = write(tmp_path, "csv", rows)
    words = ["dataset.classes=[no,on,2020-01-01]", "dataset.schema={a: {list: [yes, 14:30, 0x1F]}}"]
    config = compose(["dataset=table", f"dataset.path={path}", *words, "dataset.test_fraction=0"])
    settings = OmegaConf.to_container(config.dataset)
    for key in ("_target_", "unseen"):
        settings.pop(key)
    data = table(**settings)
    assert data.train.images.ravel().tolist() == data.train.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "entries", "said"),
    [
        (["red", "blue"], ["rot", "blau"], r"no cell is in the schema's list \(rot, blau\)"),
        (["EWR ", "JFK "], ["EWR", "JFK"], r"no cell is in the schema's list .*holds EWR , JFK"),
        ([1, 2], [3, 4], r"no cell is in the schema's list \(3, 4\).*holds 1, 2"),
        (["true", "false"], ["True", "False"], "no cell is in|the schema lists words"),
        (["red", None], ["red"], None),
        (["", " "], ["red"], None),
        ([1.0, 2.0], [1.0, "2"], None),
        (["1.0", "2"], [1, 2.0], None),
        (["\u00e9", "x"], ["e\u0301"], None),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_list_of_which_no_cell_is_a_member_is_refused(tmp_path, form, values, entries, said):
    path = str(write(tmp_path, form, {"a": values, "label": [0, 1]}))
    settings = {"path": path, "schema": {"a": {"list": entries}}, "test_fraction": 0}
    if said is not None:
        with pytest.raises(DataError, match=said):
            table(**settings)
        return
    unknown = (None, "x", "", " ")
    known = [-1 if value in unknown else place for place, value in enumerate(values)]
    assert table(**settings).train.images.ravel().tolist() == known


SCHEMA = {"a": {"list": [870, 945]}}  # of 14:30 and 15:45


@pytest.mark.parametrize("values", [["14:30", "15:45"], ["red", "blue"]])
def test_on_a_device_only_the_owner_is_told_and_a_run_has_blanks(tmp_path, values):
    path = write(tmp_path, "csv", {"a": values, "label": ["0", "1"]})
    owner = OwnerSettings((0,), str(path), None, inputs=("a",))
    terms = DeviceDataSpec([1, 1, 1], 2)
    found = load_own(str(path), owner, terms, tmp_path / "cache", SCHEMA)
    assert found.train.images.ravel().tolist() == [-1, -1]
    own = OwnData(owner, terms, tmp_path, schema=SCHEMA)
    assert len(own.of(0)) == 2
    with pytest.raises(DataError, match=r"write '14:30'|the schema says numbers"):
        own.read(0, blanks=False)


@pytest.mark.parametrize("values", [["14:30", "15:45"], ["red", "blue"]])
def test_a_device_tells_its_owner_at_the_start(tmp_path, monkeypatch, values):
    path = write(tmp_path, "csv", {"a": values, "label": ["0", "1"]})
    words = {"clients": "0", "data": str(path), "inputs": "a", "shape": "1,1,1", "classes": 2}
    monkeypatch.setattr(device_data, "schema_of", lambda owner: SCHEMA)
    device_data.require_readable(words, tmp_path)
    log = "".join(file.read_text() for file in tmp_path.glob("*.log"))
    assert "write '14:30' with the quotes" in log or "the schema says numbers" in log


NUMBERED = {"0": ["x", "y"] * 8, "1": [0.5, 1.5] * 8, "2": ["no", "yes"] * 8, "3": list("abcd") * 4}
OVERRIDES = {
    "label": "dataset.label=2 dataset.inputs=[1]",
    "owners": "dataset.label=2 dataset.inputs=[1] dataset.client=3 partition=natural "
    "dataset.test_fraction=0 federation.num_clients=4",
    "text": "dataset.label=2 dataset.text=0 features=words",
    "schema": "dataset.label=2 'dataset.schema={0: {list: [x, y]}, 1: {range: [0, 2], bins: 4}}'",
    "crossed": "dataset.label=2 'dataset.schema={0: {list: [x, y]}, 3: {list: [a, b, c, d]}}' "
    "features=bins features.schema=${dataset.schema} 'features.crossed=[[0, 3]]'",
}


def words_of(kind):
    import shlex

    return shlex.split(OVERRIDES[kind])


@pytest.mark.parametrize("form", ["csv", "parquet", "folder", "saved"])
@pytest.mark.parametrize("kind", OVERRIDES)
def test_columns_that_are_named_by_numbers_are_found(tmp_path, kind, form):
    path = write(tmp_path, form, NUMBERED)
    settings = ["dataset=table", f"dataset.path={path}"]
    if form in ("folder", "saved"):
        settings = ["dataset=huggingface", f"dataset.path={path}", "dataset.test=null"]
    own = words_of(kind)
    if form in ("folder", "saved") and "schema" in OVERRIDES[kind]:
        pytest.skip("only tables have schemas")
    common = ["strategy=fedavg", "federation.num_clients=2", "federation.public=0"]
    data = population(compose([*settings, *common, *own])).dataset
    assert data.classes == ("no", "yes")
    if kind == "owners":
        assert sorted(set(data.owners.tolist())) == [0, 1, 2, 3]
    if kind == "label":
        assert set(data.train.images.ravel().tolist()) == {0.5, 1.5}
        right = np.where(data.train.images.ravel() > 1, 1, 0)
        assert data.train.labels.tolist() == right.tolist()


def test_a_file_of_ones_own_may_name_columns_by_numbers(tmp_path, monkeypatch):
    path = write(tmp_path, "csv", NUMBERED)
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/numbered.yaml").write_text(
        "# @package _global_\n# Numbers.\ndefaults:\n  - override /dataset: table\n  - _self_\n"
        f"dataset:\n  path: {path}\n  label: 2\n  client: 3\n  test_fraction: 0.25\n"
        "  schema:\n    0: {list: [x, y]}\n    1: {range: [0, 2], bins: 4}\n"
    )
    monkeypatch.setenv("MURMUR_PLUGINS", str(tmp_path))
    words = ["experiment=numbered", "federation.num_clients=2", "federation.public=0"]
    data = population(compose(["strategy=fedavg", *words])).dataset
    assert data.input_shape == (2, 1, 1) and len(np.unique(data.owners)) > 1


def test_a_run_with_numbered_columns_comes_to_its_end(tmp_path):
    path = write(tmp_path, "csv", NUMBERED)
    words = [f"dataset.path={path}", *words_of("crossed"), "federation.num_clients=2"]
    words += ["dataset=table", "federation.public=0", "federation.num_rounds=1", "model=linear"]
    result = run([*words, "strategy=fedavg", f"results_dir={tmp_path / 'out'}"])
    assert result.metrics["accuracy"] >= 0


def test_pairs_and_columns_of_a_schema_may_be_numbers():
    bins = Bins({0: {"list": ["x"]}, 1: {"range": [0, 1], "bins": 2}}, [[0, 1]])
    assert [column.name for column in bins.columns] == ["0", "1"]
    assert bins.crossed == ((0, 1),)


def test_a_name_that_yaml_has_changed_is_refused_with_the_quotes(tmp_path):
    path = write(tmp_path, "csv", {"yes": [0.5, 1.5], "label": [0, 1]})
    with pytest.raises(ConfigError, match=r"inputs=True: .*write 'yes' with the quotes"):
        words = [f"dataset.path={path}", "dataset.inputs=[true]", "dataset=table"]
        population(compose([*words, "federation.public=0"]))
