"""What training reports: the registry of metrics, and the tally that gathers them over an update."""
