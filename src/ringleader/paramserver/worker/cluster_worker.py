"""ClusterWorker: one worker for the server, and a process on each machine behind it.

If the machine that talks to the server is lost, the next one goes on as the same
worker: the server gives it the same assignment again.
"""

from __future__ import annotations

from typing import Self

from ringleader.errors import ConfigError
from ringleader.paramserver.protocol.messages import JoinAnswer
from ringleader.paramserver.worker.cluster import Cluster, LeaderLost, Order
from ringleader.paramserver.worker.cluster_trainer import ClusterTrainer
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.trainer import Trainer
from ringleader.paramserver.worker.worker import Worker


class ClusterWorker(Worker):
    """This machine's part of the worker. One thread."""

    cluster: Cluster
    _is_over = False
    _team: ClusterTrainer | None = None
    _ordered: JoinAnswer | None = None
    """The worker that the cluster is, as far as another process has joined."""

    @classmethod
    def open(
        cls, settings: WorkerSettings, address: ServerAddress, observer: Observer
    ) -> Self:
        """Meet the other machines, and open a session with the server."""
        cluster = Cluster.open()
        worker = super().open(settings, address, observer)
        worker.cluster = cluster
        return worker

    def run(self) -> bool:
        """Train until the server says that training is over."""
        self._prepare()
        while not self._is_over:
            try:
                self._is_over = (
                    self._lead() if self.cluster.is_leader else self._follow()
                )
            except LeaderLost:
                leader = self.cluster.leader
                self._observer.noted(f"the leader was lost; rank {leader} goes on")
        return True

    def close(self) -> None:
        """Leave the run and the cluster."""
        super().close()
        self.cluster.close(is_over=self._is_over)

    def _lead(self) -> bool:
        if self._ordered is None:
            self._joiner.join()
        else:
            self._joiner.take_over(self._ordered)
        self._train()
        self.cluster.exchange(Order(self._run))
        return True

    def _follow(self) -> bool:
        """Do what the leader orders, once; True if training is over."""
        order = self.cluster.exchange(Order())
        if order.assignment is None or order.run is None:
            return True
        if self._ordered is None:
            self._observer.joined(order.run, str(self._device))
        self._ordered = order.run
        trainer = self._trainer_of(order.run)
        result = trainer.compute(self._prepared.manifest, order.assignment, ())
        self.totals.add_counted(result.num_samples, result.loss)
        return False

    def _make_trainer(self, run: JoinAnswer) -> Trainer:
        return self._trainer_of(run)

    def _trainer_of(self, run: JoinAnswer) -> ClusterTrainer:
        """Return the trainer with its optimizer, also after a change of the leader."""
        if not run.is_local:
            raise ConfigError("--cluster needs a server with --mode rounds")
        if self._team is None or self._team.run.seed != run.seed:
            prepared, device = self._prepared, self._device
            self._team = ClusterTrainer.of(prepared, device, run, self.cluster)
        self._team.run = run
        return self._team
