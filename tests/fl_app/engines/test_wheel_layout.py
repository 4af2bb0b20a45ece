"""Where a wheel was installed there is no checkout: the app is packed all the same."""

import shutil
import tomllib

from fl_app.config.groups import CONF
from fl_app.engines.deploy import copy_app


def test_an_app_is_packed_from_an_installed_wheel(tmp_path):
    project, installed = CONF.parent, tmp_path / "site-packages"
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["pyproject.toml"] == "fl_app/pyproject.toml"
    shutil.copytree(project / "fl_app", installed / "fl_app")
    shutil.copytree(project / "conf", installed / "conf")
    shutil.copyfile(project / "pyproject.toml", installed / "fl_app" / "pyproject.toml")
    app = copy_app(installed, tmp_path / "app")
    packed = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    assert {"pyproject.toml", "fl_app/client_app.py", "conf/config.yaml"} <= packed
