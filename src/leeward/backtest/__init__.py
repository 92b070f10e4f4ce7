"""Out-of-sample evidence: run a policy over a split, measure it, set it beside baselines and beside luck."""
