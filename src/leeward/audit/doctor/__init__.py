"""Before a long run: will it go well here? Small tasks with known answers, the machine, the data, and the time."""
