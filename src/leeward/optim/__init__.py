"""What stands between `backward()` and the new weights: a pipeline of gradient stages, and the optimisers."""
