"""The checks of `alpa-cfp doctor`: whether this environment and this machine meet the needs of alpa_cfp.

`findings()` gives one `Finding` after the other. Everything that could crash, hang or take long to import is checked in
separate processes (`probing`, `probes`), so that a broken installation is reported and does not stop the doctor.
"""

from alpa_cfp.doctor.examination import findings
from alpa_cfp.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "findings"]
