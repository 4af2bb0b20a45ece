"""Same seed, same result, bit for bit, however the cohort is spread over nodes and workers."""

from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from safetensors.numpy import load_file

from fl_app.config.compose import compose
from fl_app.engines.inline import InlineGrid, run_config
from fl_app.run.results import RunFolder
from murmur.compat.flower_messages import identify
from murmur.privacy.ledger import Ledger
from tests.fl_app.running import SMALL, run_inline

PAPER = "privacy=paper"  # the budget of a round, to which rounds can be added


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


def comparable(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows()]


@pytest.mark.parametrize(
    "words",
    [
        ["strategy=privatekt"],
        ["strategy=fedavg"],
        ["strategy=fedavg", "privacy.secure_aggregation=on"],
        ["strategy=local_only"],
        ["strategy=scaffold"],
        ["strategy=fedadam", "protection=distributed", "privacy.epsilon=20"],
        ["strategy=dp_ftrl"],
        ["strategy=privatekt", "evaluation=protected_counts", "evaluation.counts.epsilon=1"],
    ],
    ids=" ".join,
)
def test_result_does_not_depend_on_nodes_or_workers(tmp_path, words):
    reference = run_inline(tmp_path / "one", *words, workers=1)
    for name, engine in {
        "two workers": {"workers": 2},
        "four workers": {"workers": 4},
        "one client per node": {"workers": 2, "nodes": 6},
    }.items():
        other = run_inline(tmp_path / name.replace(" ", "-"), *words, **engine)
        assert comparable(other) == comparable(reference), name
        assert weights(other.path) == weights(reference.path), name


def test_another_seed_gives_another_result(tmp_path):
    one = run_inline(tmp_path / "1", "seed=1")
    two = run_inline(tmp_path / "2", "seed=2")
    assert weights(one.path) != weights(two.path)


def test_noise_of_the_operating_system_differs_from_run_to_run(tmp_path):
    settings = ["privacy.noise=os", "privacy.epsilon=0.5", "federation.num_rounds=3"]
    one, two = run_inline(tmp_path / "1", *settings), run_inline(tmp_path / "2", *settings)
    assert weights(one.path) != weights(two.path)


def test_interrupted_run_resumes_to_the_result_of_an_uninterrupted_one(tmp_path):
    whole = run_inline(tmp_path / "whole", PAPER, "federation.num_rounds=4")
    run_inline(tmp_path / "cut", PAPER, "federation.num_rounds=2")
    resumed = run_inline(tmp_path / "cut", PAPER, "federation.num_rounds=4")
    assert comparable(resumed) == comparable(whole)
    assert weights(resumed.path) == weights(whole.path)


def test_round_lost_between_ledger_and_checkpoint_is_answered_from_the_ledger(tmp_path):
    whole = run_inline(tmp_path / "whole", PAPER, "federation.num_rounds=3")
    cut = run_inline(tmp_path / "cut", PAPER, "federation.num_rounds=2")
    before = {p: p.read_bytes() for p in (cut.checkpoint_path, cut.path / "config.yaml")}
    run_inline(tmp_path / "cut", PAPER, "federation.num_rounds=3")
    # As if killed after round 3's answers were stored and before its checkpoint was.
    for path, content in before.items():
        path.write_bytes(content)
    resumed = run_inline(tmp_path / "cut", PAPER, "federation.num_rounds=3")
    assert comparable(resumed) == comparable(whole)
    assert weights(resumed.path) == weights(whole.path)


def test_all_reference_strategies_run_and_say_that_they_are_not_private(tmp_path):
    for strategy in ("fedavg", "fedprox", "local_only", "centralised"):
        run = run_inline(
            tmp_path / strategy,
            f"strategy={strategy}",
            "privacy.noise=os",
            "federation.num_clients=1",
            "federation.clients_per_round=1",
        )
        assert run.metrics()["epsilon_proven"] == "infinity"
        assert "NOT PRIVATE" in (run.path / "privacy.txt").read_text()
        assert run.metrics()["accuracy"] > 0.2, strategy


def test_a_composed_run_keeps_its_owners_policy_and_its_name(tmp_path):
    policy = Path(__file__).resolve().parents[3] / "deploy" / "policies" / "votes.yaml"
    config = compose([*SMALL, "run_name=mine"])
    run_config(config, RunFolder(tmp_path / "free"))
    with Ledger(tmp_path / "free" / "ledger.sqlite", create=False) as ledger:
        assert {entry.run for entry in ledger.entries()} == {"mine"}
    held = compose([*SMALL, f"privacy.policy={policy}"])
    run = RunFolder(tmp_path / "held")
    run_config(held, run)
    assert len(run.rows()[-1]["failed"]) == held.federation.num_clients
    assert "the policy" in str(run.rows()[-1]["failed"])


def test_a_node_of_a_single_thread_answers_when_its_reply_is_asked_for():
    identify()
    answered = []

    def answer(message, context):
        answered.append(message.metadata.dst_node_id)
        return Message(RecordDict(), reply_to=message)

    grid = InlineGrid(answer, {}, 3)
    asked = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    for place, reply in enumerate(grid.send_and_receive(asked)):
        assert len(answered) == place + 1
        assert reply.metadata.reply_to_message_id == asked[place].metadata.message_id
    assert answered == grid.get_node_ids()
