"""The public programs: where each comes from, and the mesh axes that it names.

Invariant: a program's file is imported only in the process that runs it, since two repositories may have modules of the
same name.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step

_FLAX = ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0")
_ABSENT = (
    *("tensorflow", "tensorflow_datasets", "tensorflow_text", "sentencepiece", "grain", "sklearn"),
    *(
        "clu.metric_writers",
        "clu.periodic_actions",
        "clu.parameter_overview",
        "clu.checkpoint",
        "clu.deterministic_data",
    ),
)


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        repository: "owner/name" on GitHub; its checkout is the folder "name".
        commit: The commit with which the step's file was written.
        axes: The names of the axes of meshes with up to three; a mesh has the first ones.
        absent: The packages of which a step needs nothing (`absent.replace`).
        names_mesh: Whether a step asks for shardings over its mesh; that of the reference has one device.
        draws: Whether a step draws random numbers. Alpa draws others than `jax.jit`.
    """

    repository: str
    commit: str
    axes: tuple[str, str, str] = ("data", "model", "second")
    absent: tuple[str, ...] = _ABSENT
    names_mesh: bool = False
    draws: bool = False

    @property
    def folder(self) -> str:
        """The name of the folder of its checkout."""
        return self.repository.partition("/")[2]


PROGRAMS = {
    "lm1b": Program(*_FLAX, draws=True),
    "seq2seq": Program(*_FLAX, draws=True),
    "gemma": Program(*_FLAX, draws=True),
    "imagenet": Program(*_FLAX),
    "ogbg_molpcba": Program(*_FLAX, draws=True),
    "easylm": Program(
        "young-geng/EasyLM",
        "fe5b2c354e25d697fce7cd225e23bbbe72570da3",
        axes=("dp", "mp", "fsdp"),
        absent=("wandb", "gcsfs", "datasets"),
        names_mesh=True,
    ),
    "nanodo": Program("google-deepmind/nanodo", "10aefdeed40a63293daf112b91a5538cd24fa3a4", names_mesh=True),
    "purejaxrl": Program(
        "luchris429/purejaxrl",
        "31756b197773a52db763fdbe6d635e4b46522a73",
        absent=("brax", "navix", "gymnasium", "seaborn"),
        draws=True,
    ),
    "diffrax": Program("patrick-kidger/diffrax", "5ea5fcb05058bd22548300a10ea5ef5ce7fb75bb", absent=()),
}


def make_step(name: str, checkout: Path, mesh: Mesh) -> Step:
    """The step of the program `name`, from a checkout of its repository."""
    return importlib.import_module(f"public_steps.{name}").make(checkout, mesh)
