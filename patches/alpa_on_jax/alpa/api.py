"""Replacements in `alpa.api`: what a call of a parallelized function does before it compiles, and its error paths.

Takes the user's function and arguments, splits them into static and dynamic ones, and gives back the executable for
the shapes of the latter, compiled or from alpa's cache. Whatever the user got wrong is one clear error (`errors`)
that comes before anything is compiled.

Invariant: `alpa.init` has either succeeded or left alpa as if it had not been called.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
from flax.training.train_state import TrainState
from jax._src.api_util import donation_vector
from jax.api_util import argnums_partial, flatten_fun_nokwargs, rebase_donate_argnums, shaped_abstractify
from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from alpa_on_jax import errors
from alpa_on_jax.alpa.random_keys import OfBits, bits_of_keys, keys_of_bits
from alpa_on_jax.jax import linear_util as lu
from alpa_on_jax.jax.experimental.maps import FrozenDict
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace `init`, `shutdown`, `parallelize` and how ParallelizedFunc prepares a call."""

    def init(
        cluster: str = "ray",
        num_nodes: int | None = None,
        num_devices_per_node: int | None = None,
        namespace: str | None = "alpa_default_space",
        *,
        cluster_address: str | None = None,
    ) -> None:
        """Initialize the global environment; does nothing if that has been done.

        Args:
            cluster: "local" for the devices of this process, "ray" for those of a Ray cluster.
            num_nodes, num_devices_per_node: how much of the Ray cluster to use; all of it by default.
            namespace: Ray's, if this connects the process to Ray.
            cluster_address: which Ray cluster: "<ip>:<port>", or "local" to start one of this machine alone. By
                default that which this process is connected to already, or that of the variable RAY_ADDRESS.

        Raises:
            errors.ClusterError: there is no such kind of cluster, no Ray cluster was named or reached, or it has not
                got so many devices.
        """
        if module.is_initialized:
            return
        if cluster not in ("local", "ray"):
            raise errors.ClusterError(f'alpa.init: cluster={cluster!r} is neither "local" nor "ray"')
        module.init_global_cluster(cluster, num_nodes, num_devices_per_node, namespace, cluster_address)
        module.is_initialized = True  # type: ignore[attr-defined]

    def shutdown() -> None:
        """Shutdown the global environment.

        Raises:
            errors.ClusterError: it was not initialized.
        """
        if not module.is_initialized:
            raise errors.ClusterError("alpa.shutdown: alpa.init has not been called, or alpa is shut down already")
        module.is_initialized = False  # type: ignore[attr-defined]
        module.shutdown_global_cluster()

    def parallelize(
        fun: Callable[..., Any] | None = None,
        *,
        static_argnums: Sequence[int] | int | str = "auto",
        donate_argnums: Sequence[int] | int | str = "auto",
        batch_argnums: Sequence[int] | int = (1,),
        method: Any = None,
    ) -> Any:
        """Parallelize a jax function; without `fun`, give a decorator that does.

        Args:
            static_argnums, donate_argnums: as of jax.jit; "auto" infers them.
            batch_argnums: the arguments that are the batch, which micro-batches split along dim 0.
            method: a ParallelMethod; ShardParallel by default.

        Raises:
            errors.NotCallableError: `fun` is no function.
            errors.MethodError: `method` is no ParallelMethod.
        """
        module.check_alpa_jaxlib_version()
        if method is not None and not isinstance(method, module.ParallelMethod):
            raise errors.MethodError(method)

        def decorate_fun(fun: Callable[..., Any]) -> Any:
            if not callable(fun):
                raise errors.NotCallableError(fun)
            return module.ParallelizedFunc(
                fun, static_argnums, donate_argnums, batch_argnums, method or module.ShardParallel()
            )

        return decorate_fun if fun is None else decorate_fun(fun)

    def _decode_args_and_get_executable(self: Any, *args: Any) -> tuple[Any, Any, Callable[[], Any], list[Any]]:
        """The executable for `args`, the structures of the dynamic arguments and results, and the former's leaves."""
        name = getattr(self.fun, "__name__", repr(self.fun))
        static = _argnums(name, "static_argnums", self.static_argnums, args, module.auto_static_argnums)
        donate = _argnums(name, "donate_argnums", self.donate_argnums, args, module.auto_donate_argnums)
        batch = _argnums(name, "batch_argnums", self.batch_argnums, args, None)
        if both := set(static) & set(donate):
            raise errors.ArgnumsError(name, "donate_argnums", donate, f"donates static arguments: {sorted(both)}")

        fun = lu.wrap_init(_function_of_bits(self))
        args = bits_of_keys(args)
        dyn_args: Sequence[Any] = args
        if static:
            frozen = [_freeze(name, i, arg, self.static_argnums) if i in static else arg for i, arg in enumerate(args)]
            fun, dyn_args = argnums_partial(fun, [i for i in range(len(args)) if i not in static], frozen)
        dyn_args = tuple(dyn_args)
        args_flat, in_tree = tree_flatten(dyn_args)
        fun, out_tree = flatten_fun_nokwargs(fun, in_tree)
        try:
            avals = [module.abstractify_with_aval(arg) for arg in args_flat]
        except (TypeError, ValueError) as error:
            raise _not_an_array(name, args, static) or error from error

        donated = donation_vector(rebase_donate_argnums(donate, static), (), in_tree, kws=False)
        in_batch = donation_vector(
            rebase_donate_argnums([i for i in batch if i not in static], static), (), in_tree, kws=False
        )
        executable = module._compile_parallel_executable(
            fun,
            in_tree,
            module.HashableFunction(lambda: out_tree(), closure=None),
            static,
            donated,
            in_batch,
            self.method,
            *avals,
        )
        self.last_executable = executable
        return executable, in_tree, out_tree, args_flat

    def __call__(self: Any, *args: Any) -> Any:
        """Run the function; typed random keys are taken and given as such."""
        executable, _, out_tree, args_flat = self._decode_args_and_get_executable(*args)
        return keys_of_bits(tree_unflatten(out_tree(), executable.launch_on_driver(*args_flat)))

    replace(module, auto_static_argnums, init, shutdown, parallelize)
    replace_in_class(
        module.ParallelizedFunc, module.traceback_util.api_boundary(__call__), _decode_args_and_get_executable
    )


def _function_of_bits(parallelized: Any) -> OfBits:
    """The user's function as one of keys' bits: alpa's cache keeps what it compiled for as long as this lives."""
    if "function_of_bits" not in vars(parallelized):
        parallelized.function_of_bits = OfBits(parallelized.fun)
    return parallelized.function_of_bits


def auto_static_argnums(args: Sequence[Any]) -> tuple[int, ...]:
    """The arguments that are static unless alpa is told: Python scalars, strings, and what has a leaf that is no array.

    As alpa's own (`alpa/util.py`), but without working out the abstract value of every array in every call.
    """

    def is_static(arg: Any) -> bool:
        if isinstance(arg, (bool, int, float, str)):
            return True
        return not isinstance(arg, TrainState) and not all(map(_is_array, tree_leaves(arg)))

    return tuple(i for i, arg in enumerate(args) if is_static(arg))


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array):
        return True
    try:
        shaped_abstractify(leaf)
    except TypeError:
        return False
    return True


def _argnums(
    function: str, option: str, value: Any, args: Sequence[Any], infer: Callable[[Sequence[Any]], Sequence[int]] | None
) -> tuple[int, ...]:
    """The positions that an argnums option means for these arguments, counted from 0, in order."""
    if infer is not None and value == "auto":
        return tuple(infer(args))
    numbers = (value,) if isinstance(value, int) else value
    try:
        numbers = tuple(int(number) for number in numbers)
    except (TypeError, ValueError):
        raise errors.ArgnumsError(function, option, value, "is neither a number nor a sequence of numbers") from None
    # A batch argument that a function does not have splits nothing: (1,) is the default for every function.
    if option != "batch_argnums" and any(not -len(args) <= number < len(args) for number in numbers):
        raise errors.ArgnumsError(function, option, value, f"is out of range: the call has {len(args)} arguments")
    return tuple(sorted({number % len(args) for number in numbers if -len(args) <= number < len(args)}))


def _freeze(function: str, position: int, arg: Any, option: Any) -> Any:
    """A static argument as something that can be hashed, as the key of the compiled function."""
    frozen = FrozenDict(arg) if isinstance(arg, dict) else arg
    try:
        hash(frozen)
    except TypeError:
        if option == "auto" and (error := _not_an_array(function, (arg,), (), first=position)) is not None:
            raise error from None
        raise errors.ArgnumsError(
            function,
            "static_argnums",
            option,
            f"makes argument {position}, of type {type(arg).__name__}, static, but it cannot be hashed",
        ) from None
    return frozen


def _not_an_array(
    function: str, args: Sequence[Any], static: Sequence[int], first: int = 0
) -> errors.NotAnArrayError | None:
    """The error for the first leaf of a dynamic argument that is no array, if there is one."""
    for position, arg in enumerate(args):
        if position in static:
            continue
        for path, leaf in tree_flatten_with_path(arg)[0]:
            if not isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype"):
                return errors.NotAnArrayError(function, f"args[{first + position}]{keystr(path)}", leaf)
    return None
