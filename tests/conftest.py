"""Settings every test shares."""

from hypothesis import settings

# Derandomised: a run that was green stays green on the same code. No deadline: machines differ, equations do not.
settings.register_profile("leeward", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("leeward")
