"""Who may not take part does not: keys, certificates and bundles that nobody vouches for."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.federation.loopback import script

pytestmark = pytest.mark.federation

ENDS = 300  # seconds for a SuperNode to give up


def test_node_with_a_key_that_is_not_enrolled_is_refused(federation):
    key = federation.folder / "stranger.key"
    script("node-key.sh", key)
    online = federation.online()
    node = federation.start_node(20, key, federation.device(20), "--max-retries", "1")
    assert node.wait(ENDS) != 0
    assert federation.online() == online


def test_superlink_of_another_authority_is_refused(federation, tmp_path):
    script("certificates.sh", tmp_path, "127.0.0.1")
    key = federation.folder / "node-0.key"
    other = tmp_path / "ca.pem"
    node = federation.start_node(21, key, federation.device(21), "--max-retries", "1", ca=other)
    assert node.wait(ENDS) != 0
    assert "certificate verify failed" in federation.log("node-21").lower()


class Nothing(BaseHTTPRequestHandler):
    def do_POST(self):
        raise AssertionError("a device has spoken to a server whose certificate has expired")


def test_superlink_whose_certificate_has_expired_is_refused(federation, tmp_path):
    script("certificates.sh", tmp_path, "127.0.0.1", "-1")
    server = HTTPServer(("127.0.0.1", 0), Nothing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        node = federation.start_node(
            22,
            federation.folder / "node-0.key",
            federation.device(22),
            "--max-retries",
            "1",
            port=server.server_port,
            ca=tmp_path / "ca.pem",
        )
        assert node.wait(ENDS) != 0
    finally:
        server.shutdown()
        server.server_close()
    assert "expired" in federation.log("node-22")
