"""``research.ldp_evaluation.epsilon`` gives the document's rule with the sensitivity that holds."""

import pytest

from research.ldp_evaluation.epsilon import main


def test_the_documents_values_are_half_of_what_holds(capsys):
    main(["--error", "1e-5", "--results", "2"])
    said = capsys.readouterr().out
    assert "evaluation.result.epsilon=460517, for a client (Δ = 2)" in said
    assert "ε = 921,035" in said
    assert "laplace_eval_eps=230259" in said


def test_many_records_need_less(capsys):
    main(["--error", "0.05", "--records", "50"])
    said = capsys.readouterr().out
    assert "evaluation.result.epsilon=1.84207, for a record (Δ = 0.04)" in said
    assert "laplace_eval_eps" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--error", "0"], "error=0"),
        (["--error", "0.1", "--probability", "1"], "probability=1"),
        (["--error", "0.1", "--records", "0"], "records=0"),
        (["--error", "0.1", "--results", "0"], "--results=0"),
    ],
)
def test_bad_input_is_one_sentence(words, said):
    with pytest.raises(SystemExit, match=said):
        main(words)
