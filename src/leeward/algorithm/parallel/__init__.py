"""Several processes that train one model together; `docs/several-processes.md`.

process_group   what the engine asks of the processes it runs in: who am I, gather, average, broadcast
worker          what every process but the first is, and what it does about an order
worker_pool     starts processes on this machine and gives them orders
peers           gives orders to processes that somebody else has started
env_shards      envs that can be made again in another process
processes       the one object through which a model knows all of this
"""
