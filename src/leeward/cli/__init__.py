"""The command line; commands import what they need when they run, so that --help is quick."""

from leeward.cli.app import main

__all__ = ["main"]
