"""`leeward audit RUN`: every check of a run, and its two files."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

from leeward.audit import engine
from leeward.audit.checks import Check, run_checks
from leeward.audit.engine.twins import kept_random_state
from leeward.audit.findings import Audit
from leeward.audit.run import accounts, data, memory, results, story
from leeward.audit.run.subject import open_run, parts_of
from leeward.durable import write_atomically

__all__ = ["CHECKS", "audit_run", "write_audit"]

CHECKS = (
    Check("files", "is every file what was written?", ("run",), story.files_are_whole),
    *engine.CHECKS,
    Check("features", "do features know the future?", ("market",), data.features_know_no_future),
    Check("scaler", "do the scales know train alone?", ("market", "record"), data.scaler_is_of_train),
    Check("own_columns", "do columns of your own know the future?", ("market",), data.columns_know_no_future),
    Check("account", "does an account know the future?", ("market", "config"), data.accounts_know_no_future),
    Check("books", "does a second ledger agree?", ("backtests", "market", "config"), accounts.books_balance),
    Check("backtest", "does the agent decide so again?", ("backtests", "shown"), accounts.agent_repeats),
    Check("var", "does its tail come as foretold?", ("judged",), results.tail_is_foretold),
    Check("limit", "is the limit kept, and used?", ("judged", "model"), results.limit_is_kept),
    Check("out_of_sample", "does train carry over?", ("judged", "shown", "config"), results.carries_over),
    Check("costs", "do costs leave a profit?", ("judged", "config"), results.costs_are_bearable),
    Check("holding", "is it more than buy and hold?", ("judged",), results.is_not_holding),
    Check("warm_up", "is the memory warm at the start?", ("agent", "market", "config"), memory.warm_up_is_enough),
    Check("options", "did every option do something?", ("config", "progress"), story.options_act),
    Check("seal", "how often was the test split opened?", ("record",), story.test_stays_sealed),
    Check("versions", "are the versions those of the run?", ("run",), story.versions_are_the_same),
)


def audit_run(path: Path, progress: Callable[[str], None] = lambda name: None) -> Audit:
    """Look at a run; nothing in its directory changes."""
    run = open_run(path)
    with kept_random_state(), warnings.catch_warnings():
        # What a copy of the model or its data would warn of was said when the run was trained.
        warnings.simplefilter("ignore")
        return run_checks(CHECKS, parts_of(run), progress)


def write_audit(path: Path, audit: Audit) -> None:
    """audit.md and audit.json into the run."""
    write_atomically(path / "audit.md", audit.markdown(path.resolve().name))
    write_atomically(path / "audit.json", json.dumps(audit.as_dict(), indent=1, ensure_ascii=False) + "\n")
