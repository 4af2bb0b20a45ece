"""A node that trusts a reviewer runs what that reviewer has signed, and nothing else."""

import hashlib

import pytest
import requests
from flwr.supercore.fab import Fab
from flwr.supercore.utils import request_download_link
from flwr.superlink.servicer.control.control_handlers import _format_verification
from flwr.supernode.start_client_internal import _verify_fab

from fl_app.run.results import RunFolder
from murmur.round.task import REFUSED
from tests.deploy.conftest import ENDS, PICKY, WORDS


def test_flower_itself_takes_the_signed_bundle_and_no_altered_one(bundle_hub):
    hub, trusted = bundle_hub
    url, signatures, _ = request_download_link(
        "@murmur/murmur-fl", "1.0.0", f"{hub.url}/hub/fetch-fab", "fab_url"
    )
    content, known = requests.get(url, timeout=10).content, _format_verification(signatures)

    def passes(content, verifications):
        digest = hashlib.sha256(content).hexdigest()
        return _verify_fab(Fab(digest, content, verifications), trusted)

    assert passes(content, known)
    assert not passes(content + b"x", known)
    assert not passes(content, {"valid_license": ""})


@pytest.mark.federation
@pytest.mark.parametrize(("bundle", "answers"), [(None, 3), ("@murmur/murmur-fl==1.0.0", 4)])
def test_only_the_signed_bundle_runs_where_signed_ones_must(federation, tmp_path, bundle, answers):
    words = [word for word in WORDS if not word.startswith("partition")]
    words += [f"federation.num_clients={PICKY + 1}", "federation.num_rounds=1"]
    folder = tmp_path / ("unsigned" if bundle is None else "signed")
    words += [f"federation.quorum={answers / (PICKY + 1)}", f"run_dir={folder}"]
    if bundle is not None:
        words.append(f"engine.bundle='{bundle}'")
    command = [*federation.words, "strategy=privatekt", *words]
    assert federation.murmur(*command).wait(ENDS) == 0, federation.story()
    (_, row) = RunFolder(folder).rows()
    assert row["answered"] == answers
    if bundle is None:
        assert REFUSED in row["failed"][str(PICKY)]
        assert "The FAB could not be verified" in federation.log(f"node-{PICKY}")
        assert not (federation.folder / f"state-{PICKY}" / "ledger.sqlite").exists()
    else:
        assert row["failed"] == {}
