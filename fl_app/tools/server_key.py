"""``murmur server-key FILE [--sign-new OLD]``: the key with which a server signs what it asks.

FILE gets the private half, readable by its owner only; FILE.pub the public half, which owners write
into their policies (``servers: [KEY]``). A run uses it by ``federation.server_key=FILE``. With
``--sign-new OLD`` the key in OLD signs the new one, and owners who have pinned the old key accept
the new one as well. A key that is lost signs nothing: owners then pin another by hand.
"""

import sys

from fl_app.tools.options import parser_of
from murmur.format import printable
from murmur.privacy.run_header import ServerKey, public_file


def main(argv: list[str]) -> int:
    """Make a key, and print what owners pin.

    Returns:
        0, or 2 where the file is there already, or the old key cannot be read; nothing is made
        then.
    """
    arguments = parser_of("server-key").parse_args(argv)
    try:
        key = ServerKey.generate()
        if arguments.sign_new is not None:
            key = ServerKey.load(arguments.sign_new).successor()
        key.save(arguments.file)
    except (OSError, ValueError) as error:
        print(f"murmur server-key: {printable(error)}", file=sys.stderr)
        return 2
    print(f"{arguments.file}: the private key; keep it, and a copy elsewhere")
    print(f"{public_file(arguments.file)}: what owners pin in their policies:")
    print(f"servers: [{key.public_key}]")
    return 0
