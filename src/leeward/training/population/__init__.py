"""Population-based training: members train side by side on Ray, and the worst take over from the best.

Who decides is pure: `space` draws and moves settings, `compare` says who takes over from whom, `population` folds a log
of events into the orders that are still to be carried out. `member` carries out one order, from files into files, and
knows no Ray. `places` is the only file that does: it gives orders to whatever cores there are.
"""

__all__: list[str] = []
