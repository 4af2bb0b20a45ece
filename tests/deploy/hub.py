"""A stand-in for Flower's hub: one bundle, and what its reviewer has signed.

It answers the two requests that a SuperLink makes for ``flwr run @account/app==version``: where
the bundle is and who has signed it, and the bundle.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign, sign_message


class Hub:
    """Serves ``project``, packed; ``key`` (an OpenSSH file) signs it as ``name``."""

    def __init__(self, project: Path, key: Path, name: str) -> None:
        self.bundle = build_fab_from_disk(project)
        private = load_ssh_private_key(key.read_bytes(), password=None)
        assert isinstance(private, Ed25519PrivateKey)
        now = int(time.time())
        signature = sign_message(
            private, create_message_to_sign(hashlib.sha256(self.bundle).digest(), now)
        )
        encoded = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
        self.verifications = [{"public_key_id": name, "signature": encoded, "signed_at": now}]
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                answer = {"fab_url": f"{hub.url}/bundle", "verifications": hub.verifications}
                self._send(json.dumps(answer).encode())

            def do_GET(self) -> None:
                self._send(hub.bundle)

            def _send(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
