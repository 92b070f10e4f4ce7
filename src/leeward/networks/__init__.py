"""The agent's network: memory, action heads, value heads, and the policy that joins them."""
