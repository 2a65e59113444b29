"""In which file, and on which line, documents say what they say."""

from __future__ import annotations

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.fleet.yaml import Place
from gitboot.resolve.decision_inputs import FleetView

Step = str | int


class Places:
    """Where the documents of a repository say what they say; what many servers share is looked up once.

    Without ``lines`` no document is read, and each place is in no file.
    """

    def __init__(self, repository: FleetRepository, *, lines: bool = True) -> None:
        self.repository, self._lines = repository, lines
        self.view = FleetView(repository)
        self._known: dict[tuple[Id, tuple[Step, ...]], tuple[str, Place]] = {}

    def of(self, resource: Id, *path: Step) -> tuple[str, Place]:
        """The file of a resource, and the place in it of what ``path`` leads to."""
        if not self._lines:
            return "", Place(0, 0)
        if resource.kind == "Server":
            return self.repository.place(resource, *path)
        if (found := self._known.get((resource, path))) is None:
            self._known[resource, path] = found = self.repository.place(resource, *path)
        return found
