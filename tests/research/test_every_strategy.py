"""What every strategy reaches: the setting is chosen on validation data, then scored once."""

from benchmarks.runs import RunFile
from research.every_strategy import __main__ as study
from research.every_strategy.candidates import candidates, shared


def test_the_best_on_validation_data_is_what_the_test_set_sees(tmp_path, monkeypatch):
    asked = []

    def reached(words):
        asked.append(words)
        is_best = "strategy.K=1" in words
        return {"accuracy": 0.9 if is_best else 0.5, "epsilon": 8.0, "seconds": 1.0}

    monkeypatch.setattr(study, "reached", reached)
    kept = RunFile(tmp_path / "rows.jsonl")
    found = study.compared(kept, "privatekt", "local")
    assert len(found) == len(candidates("privatekt", "local"))
    assert all("federation.score=validation" in words for words in asked)
    best = next(iter(found))
    assert best == ("strategy.K=1",)
    del asked[:]
    assert study.accuracies(kept, "privatekt", "local", best, "test") == [0.9] * 3
    assert [words[-1] for words in asked] == ["seed=1", "seed=2", "seed=3"]
    assert not any(word.startswith("federation.") for word in asked[0] if "num_rounds" not in word)
    assert study.compared(RunFile(kept.path), "privatekt", "local") == found
    assert len(asked) == 3  # what was measured is kept


def test_what_is_not_offered_is_said_in_the_strategys_words():
    words = [*shared("votes", "central"), *candidates("votes", "central")[0], *study.COMMON]
    assert study.refusal(words) == "it supports local or secure_aggregation"
    words = [*shared("votes", "local"), *candidates("votes", "local")[0], *study.COMMON]
    assert study.refusal(words) is None
