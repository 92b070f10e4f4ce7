"""The audit of a run directory: its model, its data, its backtests and its story. It reads, and changes nothing."""
