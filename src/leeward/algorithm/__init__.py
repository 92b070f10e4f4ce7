"""DistributionalPPO: collect → targets → update, composed of small owners of state and pure steps."""
