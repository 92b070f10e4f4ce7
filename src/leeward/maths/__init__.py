"""Equations only: tensors in, tensors out. No class, config, logger, device choice or hidden randomness.

One file is one subject and one function is one equation; axes are T time, B envs, N levels or atoms, M target samples.
Losses are per sample and let a value that is not finite through, so that the finite guard of `optim` can count it;
everything that runs once per rollout refuses such values with an error.
"""
