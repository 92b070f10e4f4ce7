"""What is wrong with a run, found on the run itself; and before a run: will it go well here?

`model` looks at any `DistributionalPPO` on any env and needs the learning chain alone. `audit.run` adds data, backtest
and story of a run directory, `audit.doctor` tries settings on tasks with known answers.
"""

from leeward.audit.engine import model
from leeward.audit.findings import Audit, Finding, NotRun

__all__ = ["Audit", "Finding", "NotRun", "model"]
