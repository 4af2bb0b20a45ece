"""Flower's SuperLink for one run, which takes commands from nobody but whoever started it.

``python -P -m fl_app.engines.private_superlink PORT`` in the environment of that run. Flower 1.41
asks nobody on loopback who they are, and runs what it is sent as the user who started it. Here the
Control API wants the token that ``write_token`` has put where `flwr` looks for one, the Runtime API
gives tasks only to the SuperExec that shares a secret with it, and all other paths are closed. This
module rests on Flower's private interfaces; where these are different it ends at once, and whoever
waits for it checks that a stranger is refused (``refuses_strangers``).
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import yaml

TOKEN, SECRET = "token", "superexec-secret"  # files in FLWR_HOME, which only its owner can read
_CONTROL, _RUNTIME, _HEALTH = "/v1/control/", "/v1/runtime/", "/health"


class OnlyOurs:
    """ASGI middleware: the Control API for those with ``token``, the Runtime API, and no other."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "lifespan" and not self._may(scope):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)

    def _may(self, scope: dict[str, Any]) -> bool:
        path = str(scope["path"])
        if path.startswith(_CONTROL):
            given = dict(scope["headers"]).get(b"authorization", b"")
            return hmac.compare_digest(given, self.expected)
        return path.startswith(_RUNTIME) or path == _HEALTH


def write_token(home: Path, address: str) -> None:
    """A new token and secret in ``home``, and the token where `flwr` finds it for ``address``."""
    token = secrets.token_hex(32)
    (home / TOKEN).write_text(token)
    (home / SECRET).write_bytes(secrets.token_bytes(32))
    account = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": token}
    known = {
        f"flower.account-auth.{address}.{name}": base64.b64encode(value.encode()).decode()
        for name, value in account.items()
    }
    (home / "credentials.yaml").write_text(yaml.safe_dump(known))


def refuses_strangers(address: str) -> bool:
    """Whether a command without the token is refused at ``address`` (HOST:PORT)."""
    import httpx

    url = f"http://{address}{_CONTROL}list-runs"
    return httpx.post(url, content=b"", timeout=5.0).status_code == httpx.codes.UNAUTHORIZED


def main(port: str) -> None:
    """Serve until ended; ends itself when its SuperExec does."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    home = Path(os.environ["FLWR_HOME"])
    token, secret = (home / TOKEN).read_text(), str(home / SECRET)
    if extensions.get_middleware():
        sys.exit("Flower's SuperLink has extensions here, which engine=flower does not know")
    extensions.get_middleware = lambda: (Middleware(OnlyOurs, token=token),)
    shared = ["--insecure", "--superexec-auth-secret-file", secret]
    sys.argv = ["flower-superlink", *shared, "--simulation", "--isolation", "process"]
    sys.argv += ["--host", "127.0.0.1", "--port", port]
    command = [str(Path(sys.executable).parent / "flower-superexec"), *shared]
    command += ["--runtime-api-address", f"127.0.0.1:{port}", "--parent-pid", str(os.getpid())]
    superexec = subprocess.Popen(command)
    threading.Thread(target=lambda: os._exit(superexec.wait() or 1), daemon=True).start()
    flower_superlink()


if __name__ == "__main__":
    main(sys.argv[1])
