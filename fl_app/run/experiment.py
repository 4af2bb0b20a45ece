"""One run on the server's side: drive Flower's rounds, leave a full folder.

``Experiment(run)`` takes a validated run; nothing is written and nobody is asked. ``run`` then

1. takes up the checkpoint of the folder, if there is one (``Checkpoint``, ``_begin``);
2. lets Flower's ``start`` do the rounds. Whenever a round has a new model, ``_keep_trained`` has it
   on disk before anything follows from it. After each round, and once before the first,
   ``_after_round`` evaluates and writes the row;
3. writes the privacy statement, signs it with what was asked (``_sign``), and writes the model and
   the final figures (``_finish``);
4. asks devices for their receipts (``_collect_receipts``), and sends them the model (``_offer``).

Where the accountant fails after clients have answered, the run goes on: what they have paid for is
not lost. Its rows and figures have no ε, its statement says what was charged, and the error is
raised when all is written.

So a run that is killed at any instant goes on without a client answering twice for one charge, and
without noise of the server being drawn twice for one model.
"""

import hashlib
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from omegaconf import OmegaConf

from fl_app.config.compose import changed
from fl_app.config.errors import ConfigError
from fl_app.run import model_folder, offer, provenance, receipts, results, server
from fl_app.run.model_card import model_card
from fl_app.run.population import data_digests, image_population
from fl_app.run.scores import TASK_SCORES, leading_score
from fl_app.run.signing import signer_of
from fl_app.run.validated import ValidatedRun
from fl_app.tracking import RunHealth
from murmur.learning.array_bytes import array_from_bytes
from murmur.learning.metrics import chance, is_at_chance
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import assumptions_of
from murmur.privacy.statement import Statement
from murmur.round.asked_log import AskedLog
from murmur.round.placement import DevicePlacement, SimulatedPlacement
from murmur.round.statement_file import SignedStatement
from murmur.round.task import in_words

PARTITION_CLIENTS = 1000  # whose classes are counted for the report
SEEDED = "the noise was seeded (privacy.noise=seeded): whoever knows the seed can remove it"


class Experiment:
    """The rounds of a validated run.

    Args:
        run: with a folder, which the caller of ``run`` and ``checkpoint`` has claimed.

    Attributes:
        validated: the run, whose configuration, strategy and folder are this one's, too.
        health: is told of every row, as the run's tracker is.
    """

    def __init__(self, run: ValidatedRun) -> None:
        self.validated = run
        self.config = run.config
        self.federation = run.federation
        self.privacy = run.privacy
        self.tracker = run.tracker
        self.population = run.population
        self.trainer = run.trainer
        self.strategy = run.strategy
        self.folder = run.folder
        self.health = RunHealth()

    def run(self, grid: Grid) -> dict[str, Any]:
        """Do all rounds from the last checkpoint on, and fill the folder.

        Where all rounds were done before, none is asked for, and the final files are written again.

        Args:
            grid: by which nodes are reached; how many there are when this begins is how many share
                a simulation's cohort.

        Returns:
            The final figures, as ``metrics.json`` holds them.

        Raises:
            ConfigError: the folder holds a run that cannot go on (``Checkpoint``).
            RunError: too few clients answered before the rounds, or nobody in several rounds.
            RuntimeError: this run was started before; its strategy has that one's state.
            Exception: the accountant's own, once the folder is full.
        """
        self.validated.begin()
        folder = self.folder
        self.failed: Exception | None = None  # the accountant's first error
        self.shares = len(list(grid.get_node_ids()))
        arrays = ArrayRecord({"model": Array(self._begin())})
        self.tracker.begin(folder.path, self._settings, folder.rows())
        self.health.begin(folder.path, self._settings, folder.rows())
        self.last = time.monotonic()
        self.started = self.last - sum(row["seconds"] for row in folder.rows())  # of before
        rounds = self.federation.num_rounds - self.strategy.rounds.first_round
        if rounds > 0:
            folder.forget_end()  # of a finished run that is extended
            result = self.strategy.start(
                grid,
                initial_arrays=arrays,
                num_rounds=rounds,
                timeout=self.federation.round_timeout,
                evaluate_fn=self._after_round,
            )
            if result.arrays:
                arrays = result.arrays
        final = self._finish(array_from_bytes(arrays["model"].data))
        if self.failed is not None:
            raise self.failed
        self._collect_receipts(grid)
        self._offer(grid)
        return final

    def _begin(self) -> np.ndarray:
        folder, strategy = self.folder, self.strategy
        checkpoint = self.checkpoint()
        placement = strategy.setup.placement
        if checkpoint is not None and isinstance(placement, SimulatedPlacement):
            self._require_nodes(checkpoint.run.num_nodes)
        if self.config.keep_checkpoints:
            strategy.rounds.keep = self._keep_trained
            strategy.rounds.keep_journals(folder.sum_path, folder.evaluation_sum_path)
        if isinstance(placement, SimulatedPlacement) and "RAY_ADDRESS" not in os.environ:
            placement.ledger = folder.ledger_path  # on other machines it may be another
        self.lines = results.RowLines() if checkpoint is None else checkpoint.rows
        if checkpoint is not None:
            # Killed before the new config.yaml is written, the old one must still match.
            configs = [*checkpoint.configs, self._digest]
            folder.save_checkpoint(replace(checkpoint, configs=configs))
        folder.save_config(self.config)
        folder.save_card(self.validated.card)
        provenance.note_start(folder.path)
        folder.save_data_digests(data_digests(self.config))
        folder.keep_rows(self.lines)
        if (signer := signer_of(self.validated, self._name(folder))) is not None:
            signer.log = AskedLog(folder.asked_path)
            strategy.rounds.sign(signer)
        if checkpoint is None:
            start = self.validated.start
            model = strategy.setup.initial_parameters() if start is None else start
            if self.config.keep_checkpoints:
                # Before anybody is asked: what clients pay for before the rounds is this run's.
                folder.save_checkpoint(self._checkpoint(0, model))
            return model
        strategy.rounds.resume(checkpoint.run)
        return checkpoint.run.model

    def checkpoint(self) -> results.Checkpoint | None:
        """Where the run in its folder goes on, None: at its beginning.

        ``murmur`` asks before it starts an engine, and ``run`` once more on the server. Nothing is
        changed.

        Raises:
            ConfigError: it cannot go on. Its files are damaged, its data, name or settings differ,
                its budget was shared out over another number of rounds, or it kept no checkpoints:
                a round that was done again without one would be a second release of the same data.
        """
        folder = self.folder
        checkpoint = folder.load_checkpoint()
        if checkpoint is None:
            begun = folder.rows() or folder.has_ledger()
            if begun and self.config.keep_checkpoints:  # the first is there before anybody is asked
                raise ConfigError(f"{folder.checkpoint_path}: is missing; start the run anew")
            if begun:
                raise ConfigError(
                    f"{folder.path}: this run kept no checkpoints (keep_checkpoints=false), and "
                    "no round is answered or published twice; start it anew with another run_dir"
                )
            return None
        if not self.config.keep_checkpoints:
            raise ConfigError(
                "keep_checkpoints=false: this run keeps checkpoints, and would do rounds twice "
                "without them; set keep_checkpoints=true"
            )
        if isinstance(self.strategy.setup.placement, SimulatedPlacement):
            folder.require_ledger()
        checkpoint.require_name(self._name(folder))
        before = checkpoint.require_settings(self._settings)
        checkpoint.require_data(data_digests(self.config))
        if before != self.federation.num_rounds:
            self._require_extendable(before)
        return checkpoint

    def _name(self, folder: results.RunFolder) -> str:
        """Under which clients' ledgers know the run in ``folder``."""
        return str(self.config.run_name or folder.path.name)

    def _require_nodes(self, shares: int) -> None:
        """ConfigError for fewer nodes than the ``shares`` of an interrupted round's cohort.

        Its clients answer the message that they have answered, which names all of a node's.
        """
        if self.shares < shares:
            raise ConfigError(
                f"{self.shares} nodes: {shares} shared the round that was interrupted; go on with "
                f"as many (num-supernodes={shares} behind flwr run's --federation-config)"
            )

    def _require_extendable(self, before: int) -> None:
        """Refuse more rounds where what a client releases depends on how many there will be.

        A paper's budget may be for each round by itself: then rounds can be added, unless the
        algorithm plans all rounds together or its release differs for the two numbers of rounds.

        Args:
            before: the number of rounds for which the run was planned.

        Raises:
            ConfigError: the rounds so far were noised for ``before`` rounds in all.
        """
        budget, now = self.strategy.setup.budget, self.federation.num_rounds
        is_simulated = isinstance(self.strategy.setup.placement, SimulatedPlacement)
        if self.folder.statement_path.exists() and not is_simulated:
            raise ConfigError(
                f"federation.num_rounds={now}: the run was signed as ended after {before} rounds "
                f"({self.folder.statement_path.name}), and devices hold its server to that; start "
                "a new run"
            )
        if not self.strategy.extendable:
            raise ConfigError(
                f"federation.num_rounds={now}: this run's {before} rounds were planned together; "
                "start a new run of as many rounds as you want"
            )
        shared = budget.is_private and not budget.paper_semantics
        if not shared:
            earlier = changed(self.config, "federation.num_rounds", before)
            client = self.validated.clients.client
            past = server.build_strategy(earlier, self.population, self.trainer, client)
            shared = past.release_event() != self.strategy.release_event()
        if shared:
            raise ConfigError(
                f"federation.num_rounds={now}: this run's budget was shared out over {before} "
                "rounds; only a paper's budget of a round (privacy=paper) can be extended"
            )

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The resolved configuration, which no round changes."""
        settings = OmegaConf.to_container(self.config, resolve=True)
        assert isinstance(settings, dict)
        return {str(key): value for key, value in settings.items()}

    @cached_property
    def _digest(self) -> str:
        """Of ``config.yaml``, as every checkpoint holds it."""
        return results.text_digest(results.config_text(self.config))

    def _after_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate the round's model on the server's test set, and write the round's row.

        Flower calls this as ``evaluate_fn``: with 0 for the initial model, then after each round,
        counted from where this process began. The order matters: the checkpoint, which holds the
        row as well, then ``rounds.jsonl``, then tracker and health.

        The row's ε is cumulative: what the most exposed client has released so far, in the last
        round exactly (``_spent``). Scores that are not finite are left out of the row.

        Args:
            server_round: Flower's number; the run's is ``rounds.first_round`` more.
            arrays: the global model; that of the round before where the round did not count.

        Returns:
            The scores, for Flower's log; None where a resumed run has this row already.
        """
        strategy = self.strategy
        number = strategy.rounds.first_round + server_round
        if server_round == 0 and (number > 0 or self.folder.rows()):
            return None  # resumed: this round's row is already there
        if server_round and isinstance(strategy.setup.placement, SimulatedPlacement):
            strategy.setup.placement.shares = None  # what was interrupted is done
        model = array_from_bytes(arrays["model"].data)
        scores = {k: v for k, v in strategy.evaluate(model).items() if math.isfinite(v)}
        if (evaluation := strategy.rounds.evaluation) is not None:
            scores |= {k: v for k, v in evaluation.scores.items() if math.isfinite(v)}
        now = time.monotonic()
        outcome = strategy.rounds.outcome
        row: dict[str, Any] = {
            "round": number,
            **scores,
            **self._spent(roughly=number < self.federation.num_rounds),
            "answered": len(outcome.answered),
            "counted": outcome.accepted,
            "failed": {str(client): why for client, why in outcome.failed.items()},
            "accused": {str(client): why for client, why in outcome.accused.items()},
            "bytes_down": outcome.bytes_down,
            "bytes_up": outcome.bytes_up,
            "seconds": round(now - self.last, 4),
        }
        if evaluation is not None and evaluation.failed:
            row["evaluation_failed"] = {str(c): why for c, why in evaluation.failed.items()}
        self.last = now
        self.lines.append(results.row_line(row))
        if self.config.keep_checkpoints:
            # Before the row, which it holds as well: a kill in between loses neither.
            self.folder.save_checkpoint(self._checkpoint(number, model))
        self.folder.append_row(row)
        self.tracker.row(row)
        self.health.row(row)
        return MetricRecord(dict(scores))

    def _keep_trained(self, model: np.ndarray) -> None:
        """Have what a round's training came to on disk, before anything that follows from it.

        The strategy calls this (``Rounds.keep``) with the new global model (d,), before it
        is sent, evaluated or reported. A run that is resumed here evaluates this model and neither
        asks the cohort again nor draws the server's noise a second time.
        """
        done = self.strategy.rounds.outcome
        checkpoint = self._checkpoint(done.number - 1, model)
        checkpoint.run.trained = done
        self.folder.save_checkpoint(checkpoint)

    def _checkpoint(self, number: int, model: np.ndarray) -> results.Checkpoint:
        return results.Checkpoint(
            self.strategy.rounds.state(number, model, self.shares),
            self._name(self.folder),
            self._settings,
            [self._digest],
            self.lines,
            data=data_digests(self.config),
        )

    def _save_partition(self) -> None:
        """Saves the class counts that the report draws: of many clients an even choice."""
        sizes = self.population.client_sizes()
        most = min(len(sizes), PARTITION_CLIENTS)
        shown = np.linspace(0, len(sizes) - 1, most).astype(int).tolist()
        counts = self.population.class_counts(shown).tolist()
        held = {"shown": shown, "counts": counts, "clients": len(sizes), "examples": sum(sizes)}
        self.folder.save_partition(held)

    def _forget_sums(self, model: np.ndarray) -> None:
        """Leave no raw sum on disk: no round is left that could need one.

        The strategy drops what only further rounds need, and the checkpoint, where the run keeps
        any, is replaced by one without it. The journals of secure sums are removed.
        """
        if self.config.keep_checkpoints:
            self.strategy.forget()
            self.folder.save_checkpoint(self._checkpoint(self.federation.num_rounds, model))
        self.folder.forget_sums()

    def _spent(self, roughly: bool) -> dict[str, float | str | None]:
        """Returns the ε columns of a row: ``_derived``, or only that no ε is proven.

        The latter with seeded noise, and where the accountant fails after a client may have
        answered.
        """
        none: dict[str, float | str | None] = {"epsilon_proven": None}
        if self.privacy.noise == "seeded":
            return none
        try:
            return {**self._derived(roughly)}
        except Exception as error:
            if not self.strategy.rounds.participations:
                raise
            self._note(error)
            return none

    def _note(self, error: Exception) -> None:
        """Keep the accountant's first error for the end of the run."""
        if self.failed is None:
            self.failed = error
            error.add_note(
                f"the run went on without the accountant and is whole: {self.folder.path}; its "
                "statement says what was charged, and `murmur resume` derives ε from that once "
                "this is mended"
            )

    def _derived(self, roughly: bool) -> dict[str, float | str]:
        """ε of the most exposed client so far, proven and, if there are any, under assumptions.

        Against the adversary of ``privacy.threat``, for the strategy's unit and neighbours, at
        ``privacy.delta``, and with an evaluation on clients included. That sums hide a release is
        an assumption, as in the statement. A client counts as having released as soon as it may
        have, also where its answer was not used.

        Args:
            roughly: beyond 127 releases it may be the ε of up to 3.2% more of them, which takes
                less time (``Rounds.spent``).

        Returns:
            ``epsilon_proven``, and ``epsilon_assumed`` where it rests on assumptions; a number, or
            "infinity", since JSON has no sign for it.
        """
        strategy = self.strategy
        event, delta = strategy.rounds.spent(roughly), self.privacy.delta
        threat = Threat(self.privacy.threat)
        unit, adjacency = strategy.unit, strategy.adjacency
        proven = epsilon(event, delta, Threat.LOCAL, adjacency, unit=unit)
        spent = {"epsilon_proven": proven.epsilon}
        if assumptions_of(event) or threat is Threat.SECURE_AGGREGATION:
            assumed = epsilon(event, delta, threat, adjacency, unit=unit, assumptions=None)
            spent["epsilon_assumed"] = assumed.epsilon
        return {name: e if math.isfinite(e) else "infinity" for name, e in spent.items()}

    def _finish(self, model: np.ndarray) -> dict[str, Any]:
        """Write statement, partition, model and figures; the figures.

        ``metrics.json`` comes last, since its presence says that the run is finished. Accuracies
        leave out the initial model's row. The ε are those against the first adversary of the
        statement, the one that the budget is meant for; none is proven where the statement is void.

        Args:
            model: (d,), the last global model.
        """
        rows = self.folder.rows()
        scored = [row["accuracy"] for row in rows if "accuracy" in row and row["round"] > 0]
        labels = self.strategy.setup.test.labels
        statement = self._statement()
        first = statement.to_dict()["guarantees"][0]
        proven, assumed = first["proven_total"], first["assumed_total"]
        if statement.doubts:
            proven = assumed = None
        final = {
            "rounds": self.federation.num_rounds,
            "accuracy": scored[-1] if scored else None,
            "accuracy_last_5": float(np.mean(scored[-5:])) if scored else None,
            "at_chance": is_at_chance(scored[-1], labels) if scored else None,
            "chance": chance(labels) if scored else None,
            "epsilon_claimed": first["claimed_total"],
            "epsilon_proven": proven,
            "epsilon_assumed": assumed,
            "privacy_void": bool(statement.doubts),  # no ε may be relied on
            **{name: rows[-1].get(name) for name in self.strategy.setup.metrics},
            "canaries": self.config.audit.canaries,
            "bytes_up": sum(row["bytes_up"] for row in rows),
            "bytes_down": sum(row["bytes_down"] for row in rows),
            "failed": sum(len(row["failed"]) for row in rows),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        for name in TASK_SCORES.get(self.config.task, ()):
            final.setdefault(name, rows[-1].get(name))
        if final.get("r2") is not None:
            final["at_chance"] = final["r2"] <= 0
        score = leading_score(self.config)
        if score != "accuracy":
            values = [row[score] for row in rows if score in row and row["round"] > 0]
            final["score"] = score
            final[score] = values[-1] if values else None
            final["score_last_5"] = float(np.mean(values[-5:])) if values else None
        noise = self.strategy.model_noise()
        if noise is not None:
            final["model_noise"] = noise
        self.folder.save_statement(statement)
        self._sign(statement, model)
        if self.privacy.search == "charged":
            self.folder.save_released(self.strategy.rounds.released())
        self.folder.save_participations(self.strategy.rounds.participations)
        if self.population.shards:
            self._save_partition()
        self.trainer.load(model)
        tensors = self.trainer.flat.state_dict(model)
        weights = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._save_model(weights, statement, final)
        self._forget_sums(model)
        provenance.note_end(self.folder.path)
        self.tracker.end(final)
        self.health.end(final)
        self.folder.save_metrics(final)
        return final

    def _sign(self, statement: Statement, model: np.ndarray) -> None:
        """Sign what the run has asked, which ends it: nothing leaves before it is on disk.

        Not without a key, nor where the accountant has failed: a run that is resumed signs then.
        """
        signer = self.strategy.rounds.sums.signer
        if signer is None or signer.log is None or self.failed is not None:
            return
        digest = hashlib.sha256(np.asarray(model, "<f4").tobytes()).hexdigest()
        signed = SignedStatement(signer.signed, statement, digest, *signer.log.read())
        self.folder.sign_statement(signed, signer.key)

    def _save_model(
        self, weights: Mapping[str, np.ndarray], statement: Statement, final: Mapping[str, Any]
    ) -> None:
        """Write ``model/``, read it back and compare it with what the run predicts."""
        people = self.population
        images = image_population(self.config)
        test = images.dataset.test
        if self.federation.on_held_out:
            test = images.dataset.train.take(images.held_out)
        personal = self.strategy.rounds.own_models is not None
        about = model_folder.describe(self.config, people, images.dataset, statement, personal)
        plain: Any = OmegaConf.to_container(self.config, resolve=True)
        named = (*TASK_SCORES.get(self.config.task, ("accuracy",)), *self.strategy.setup.metrics)
        scores = {name: final[name] for name in named if final.get(name) is not None}
        card = model_card(images.dataset.name, about, plain, scores, images.dataset.named)
        about["order"] = list(self.trainer.flat.views(self.trainer.flat.vector))
        model_folder.write(self.folder.path, weights, about, people.fitted, card)
        model_folder.check(self.folder.path, test, people.dataset.test.images, self.trainer)

    def _collect_receipts(self, grid: Grid) -> None:
        """Ask devices for receipts once the statement is signed; a simulation writes its own.

        What goes wrong is logged: the run itself is complete.
        """
        signer, placement = self.strategy.rounds.sums.signer, self.strategy.setup.placement
        path = self.folder.statement_path
        if signer is None or not path.exists():
            return
        try:
            if isinstance(placement, DevicePlacement):
                statement, enrolment = path.read_bytes(), placement.enrolment
                seconds = self.federation.round_timeout
                receipts.collect(grid, statement, signer, enrolment, self.folder.path, seconds)
            else:
                clients = range(self.federation.num_clients)
                name = self._name(self.folder)
                receipts.write_simulated(self.folder.path, name, signer, clients, path.read_bytes())
        except Exception as error:
            log(logging.WARNING, "receipts were not all collected (%s)", in_words(error))

    def _offer(self, grid: Grid) -> None:
        """Send the model to the devices that took part, where the run offers it.

        What goes wrong is logged: the run itself is complete.
        """
        placement = self.strategy.setup.placement
        statement = Statement.from_dict(self.folder.statement())
        wanted = offer.is_due(self.federation.offer_model, statement)
        if not wanted or not isinstance(placement, DevicePlacement):
            return
        model = self.folder.path / model_folder.FOLDER
        rounds = self.strategy.rounds
        clients, signer = rounds.participations, rounds.sums.signer
        content = offer.signed_content(model, signer, clients, self.federation.num_rounds)
        try:
            sent, answered = offer.send(
                grid, content, placement.enrolment, clients, self.federation.round_timeout
            )
        except Exception as error:
            log(logging.WARNING, "the model was not offered (%s)", in_words(error))
            return
        log(logging.INFO, "the model was offered to %d devices; %d answered", sent, answered)

    def _statement(self) -> Statement:
        """The run's; on seeded noise it is void, and without ε where the accountant fails."""
        rounds = self.strategy.rounds
        void = [SEEDED] if self.privacy.noise == "seeded" else []
        try:
            return rounds.statement(void)
        except Exception as error:
            if not self.strategy.rounds.participations:
                raise
            self._note(error)
            return rounds.without_epsilon(error, void)
