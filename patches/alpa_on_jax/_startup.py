"""Makes `import alpa` work as the first import of a process. Run by a .pth file at every interpreter start.

Takes nothing and gives nothing back; afterwards one finder more stands first in `sys.meta_path`. The finder compares
a name with `alpa` and does nothing for any other name, so that a process that never imports alpa pays for this file
and no more: it must import nothing but `sys`. All the rest is in `hook`, which the first import of alpa loads.
"""

import sys


class AlpaFinder:
    """A meta path finder for `alpa` and its submodules."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Hand `alpa` and `alpa.*` to `hook.find_spec`, and nothing else."""
        if name == "alpa" or name.startswith("alpa."):
            from alpa_on_jax import hook

            return hook.find_spec(name, path, target, cls)
        return None


if AlpaFinder not in sys.meta_path:
    sys.meta_path.insert(0, AlpaFinder)
