"""What follows from a configuration is computed once, and never for another one."""

from omegaconf import OmegaConf

from fl_app.config.once import once


def counted():
    asked = []

    @once
    def found(config, more=""):
        asked.append(more)
        return f"{config.seed}{more}"

    return found, asked


def test_read_only_configuration_is_read_once_for_each_further_argument():
    found, asked = counted()
    config = OmegaConf.create({"seed": 1})
    OmegaConf.set_readonly(config, True)
    assert [found(config) for _ in range(2)] == ["1", "1"]
    assert [found(config, "x") for _ in range(2)] == ["1x", "1x"]
    assert asked == ["", "x"]


def test_equal_configuration_that_is_another_object_is_read_itself():
    found, asked = counted()
    for _ in range(2):
        config = OmegaConf.create({"seed": 1})
        OmegaConf.set_readonly(config, True)
        assert found(config) == "1"
    assert len(asked) == 2


def test_configuration_that_may_change_is_read_anew():
    found, _ = counted()
    config = OmegaConf.create({"seed": 1})
    assert found(config) == "1"
    config.seed = 2
    assert found(config) == "2"
