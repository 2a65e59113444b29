"""Commits evaluated in this process, through the same words: for tests that make passes one by one."""

from __future__ import annotations

from pathlib import Path

from gitboot.evaluate import wire
from gitboot.evaluate.difference import told
from gitboot.evaluate.evaluator import Evaluator
from gitboot.instance.evaluation import Commit, Evaluated, Evaluation, assembled
from gitboot.load import FleetRepository, Revision
from gitboot.load.machines import machines
from gitboot.resolve import Decisions
from gitboot.resolve.decide import site_of
from gitboot.resolve.optouts import opt_outs
from gitboot.source import Reader


class Here(Evaluation):
    """An evaluation without a process of its own."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(Path())
        self._reader = reader
        self._evaluator = Evaluator(reader.snapshot)

    def evaluate(self, revision: Revision) -> Evaluated | None:
        base = self._base.revision if self._base is not None else None
        try:
            difference = self._evaluator.evaluate(revision, base)
        finally:
            self._reader.close()
        return assembled(self._base, revision, (wire.answer(wire.encode(each)) for each in told(difference)))


def commit_of(repository: FleetRepository, decisions: Decisions) -> Commit:
    """What an instance knows of a repository that was decided."""
    sites = {name: site_of(repository, server) for name, server in repository.servers.items()}
    return Commit(
        revision=repository.revision,
        fleet=repository.fleet.spec,
        decisions=decisions,
        machines=machines(repository),
        sites={name: site.name for name, site in sites.items() if site is not None},
        labels={name: server.metadata.labels for name, server in repository.servers.items()},
        addresses={
            address.partition("/")[0]: name
            for name, server in repository.servers.items()
            for interface in server.spec.interfaces
            for address in interface.addresses
        },
        opt_outs=tuple(opt_outs(repository)),
    )
