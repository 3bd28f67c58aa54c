"""purejaxrl's `ppo.py`: a whole training by PPO in one function, environments and all, in nested scans."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The function of `ppo.make_train` for 2 updates with 16 environments (CartPole) of 16 steps.

    The whole training is one call; a second "step" is a training with the next key. It takes a key and no batch, so
    data parallelism has nothing to split.
    """
    with importing_from(checkout / "purejaxrl"):
        import jax
        import ppo  # pyright: ignore[reportMissingImports]

    train = ppo.make_train(
        {
            "LR": 2.5e-4,
            "NUM_ENVS": 16,
            "NUM_STEPS": 16,
            "TOTAL_TIMESTEPS": 512,
            "UPDATE_EPOCHS": 2,
            "NUM_MINIBATCHES": 2,
            "GAMMA": 0.99,
            "GAE_LAMBDA": 0.95,
            "CLIP_EPS": 0.2,
            "ENT_COEF": 0.01,
            "VF_COEF": 0.5,
            "MAX_GRAD_NORM": 0.5,
            "ACTIVATION": "tanh",
            "ENV_NAME": "CartPole-v1",
            "ANNEAL_LR": True,
        }
    )
    return Step(
        train,
        (jax.random.PRNGKey(30),),
        following=lambda arguments, result: (jax.random.fold_in(arguments[0], 1),),
        loss=lambda result: result["metrics"]["returned_episode_returns"].mean(),
        batch=(),
    )
