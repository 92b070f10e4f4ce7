"""Where the two chains meet: train an agent on a market, choose its checkpoint, test it, report it."""
