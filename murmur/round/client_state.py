"""What clients remember from round to round, on their own disk.

A server that was killed asks for its last round again, and a client that had already answered must
then start from where it stood before. So a state has the number of the round that made it, and the
one before stays until the next: ``load`` gives the state as of a round.

``FOLDER/CLIENT/ROUND.safetensors``: one state, with its checksum (``murmur.learning.array_file``).
It never leaves the device, so it costs no privacy by itself; what a later release tells of it is
that release's matter.
"""

from collections.abc import Mapping
from pathlib import Path

from numpy.typing import NDArray

from murmur.files import owner_only_folder, replace_file
from murmur.learning import array_file


class ClientStateError(ValueError):
    """A client's state of that round cannot be had: it is damaged, or no longer kept."""


class ClientState:
    """The states of all clients of one run that live in ``folder``; two at most of each client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: int, as_of: int) -> dict[str, NDArray] | None:
        """Returns the state of ``client`` at the end of round ``as_of``; None: it has none yet.

        It is that of the latest round up to ``as_of`` in which the client took part.
        ClientStateError where it is damaged, or older than what is kept.
        """
        rounds = self._rounds(client)
        past = [number for number in rounds if number <= as_of]
        if past:
            return self._read(client, past[-1])[0]
        if rounds and self._read(client, rounds[0])[1] <= as_of:
            raise ClientStateError(f"this client's state of round {as_of} is no longer kept")
        return None

    def save(self, client: int, number: int, arrays: Mapping[str, NDArray]) -> None:
        """Let ``client`` remember ``arrays`` from round ``number`` on, in place of any later one.

        On disk when this returns, with the latest state of an earlier round. ClientStateError where
        the earliest state that is there is damaged; OSError of the disk.
        """
        rounds = self._rounds(client)
        first = number
        if rounds:
            first = self._read(client, rounds[0])[1]
        path = self._path(client, number)
        owner_only_folder(path.parent)
        facts = {"client": client, "round": number, "first_round": min(first, number)}
        # Later states go first: after a kill in between they would pass for this round's future.
        for later in (other for other in rounds if other > number):
            self._path(client, later).unlink()
        replace_file(path, array_file.to_bytes(arrays, facts))
        for older in [other for other in rounds if other < number][:-1]:
            self._path(client, older).unlink()

    def _rounds(self, client: int) -> list[int]:
        names = (path.stem for path in self.folder.glob(f"{client}/[0-9]*.safetensors"))
        return sorted(int(name) for name in names)

    def _read(self, client: int, number: int) -> tuple[dict[str, NDArray], int]:
        """The arrays of one state, and the first round for which there was any."""
        path = self._path(client, number)
        try:
            arrays, facts = array_file.from_bytes(path.read_bytes())
            if (facts["client"], facts["round"]) != (client, number):
                raise array_file.DamagedError("it is that of another client or round")
        except (array_file.DamagedError, KeyError) as error:
            raise ClientStateError(f"{path}: {error}; remove the run and start it anew") from error
        return arrays, int(facts["first_round"])

    def _path(self, client: int, number: int) -> Path:
        return self.folder / str(client) / f"{number}.safetensors"
