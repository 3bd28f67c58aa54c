"""What `alpa-cfp doctor` looks at: whether this environment and this machine can do what alpa_cfp needs of them.

`findings()` gives one `Finding` after the other. Everything that could crash, hang or take long to import is looked at
in processes of its own (`probing`, `probes`), so that a broken installation is reported and not met.
"""

from alpa_cfp.doctor.examination import findings
from alpa_cfp.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "findings"]
