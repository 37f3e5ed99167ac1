"""The mesh: replica x stage. Every rank is one cell of it, and every rank also owns table shards.

Ranks of a replica are neighbours, so that stages of one pipeline share a node: rank = replica * stages + stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from recpipe.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """How `world` ranks are arranged, seen from `rank`.

    Args:
        rank, world: this rank and the number of ranks.
        stages: pieces that the tower is cut in.
        replicas: data-parallel copies of the pipeline.
    """

    rank: int
    world: int
    stages: int
    replicas: int

    @staticmethod
    def create(rank: int, world: int, stages: int, replicas: int | None) -> Mesh:
        """The mesh of a run; `replicas` is world / stages where it is not given.

        Raises:
            ConfigError: the numbers do not multiply to the world.
        """
        if stages < 1 or world % stages:
            raise ConfigError(f"mesh.stages={stages} does not divide the {world} ranks; change it or launch.nproc")
        copies = world // stages if replicas is None else replicas
        if copies * stages != world:
            raise ConfigError(
                f"mesh.replicas={copies} x mesh.stages={stages} is {copies * stages}, but there are {world} ranks; "
                f"leave mesh.replicas out to have it follow"
            )
        return Mesh(rank, world, stages, copies)

    @property
    def replica(self) -> int:
        return self.rank // self.stages

    @property
    def stage(self) -> int:
        return self.rank % self.stages

    @property
    def is_consumer(self) -> bool:
        """This rank holds stage 0 of its replica: it reads rows and asks for table rows."""
        return self.stage == 0
