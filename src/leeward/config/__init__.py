"""Config models: frozen pydantic classes, one file per chain, joined in `run.py`."""
