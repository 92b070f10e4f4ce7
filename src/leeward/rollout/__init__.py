"""From the env to tensors, and from tensors to minibatches of sequences."""
