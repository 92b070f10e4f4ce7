"""Several processes that train one model together; `docs/several-processes.md`.

process_group   what the engine asks of the processes it runs in: who am I, gather, average, broadcast
worker_pool     starts processes on this machine and gives them orders
env_shards      envs that can be made again in another process
processes       the one object through which a model knows all of this
"""
