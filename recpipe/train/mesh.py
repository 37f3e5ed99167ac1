"""The mesh: replicas x stages. Every rank runs stages of one replica, and every rank also owns table shards.

Ranks of a replica are neighbours, so that stages of one pipeline share a node. Which stages a rank runs is up to the
schedule: see `recpipe.runtime.place`.
"""

from __future__ import annotations

from dataclasses import dataclass

from recpipe.errors import ConfigError


@dataclass(frozen=True)
class Mesh:
    """How ranks are arranged.

    Args:
        stages: ranks of one pipeline.
        replicas: data-parallel copies of the pipeline.
    """

    stages: int
    replicas: int

    @staticmethod
    def create(world: int, stages: int, replicas: int | None) -> Mesh:
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
        return Mesh(stages, copies)
