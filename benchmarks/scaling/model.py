"""Steps per second and members per hour on 1, 8, 64 and 512 nodes, on paper, from the parts that run.py has measured.

    python benchmarks/scaling/model.py [--write]

`--workers`: one run, one worker per node, 64 envs for each worker and a minibatch that grows with them, so that the
number of messages per update stays. A round takes the CPU time of one worker's share, and for every minibatch a ring
all-reduce over the network: 2 (n − 1) hops of latency and 2 (n − 1) / n of the message through the line. Checkpoint and
validation happen in the first worker while the others wait.

`tune`: members that do not know of each other, one per core. A comparison costs the driver what simulate.py has
measured, and a member that takes over reads a checkpoint.
"""

import argparse
import json
import pathlib

HERE = pathlib.Path(__file__).parent
NODES = (1, 8, 64, 512)
CORES = 2  # of a node, as measured
LATENCY, LINE = 1e-4, 1.25e9  # seconds a hop, bytes a second: 10 Gbit/s Ethernet
GLOO = 1e-4  # seconds of software for a hop, above the loopback's own
INTERVAL = 60.0  # seconds between two comparisons
DRIVER = 0.4e-3  # seconds of the driver's CPU for an interval of one member, at 1,000 members: RESULTS_simulate.md


def round_seconds(part: dict[str, float], nodes: int) -> float:
    """One rollout and its update by `nodes` workers with as many envs each as were measured."""
    own = part["rollout"] + part["update"]
    if nodes == 1:
        return own
    hops, share = 2 * (nodes - 1), 2 * (nodes - 1) / nodes
    message = hops * (LATENCY + GLOO) + share * part["message bytes"] / LINE
    return own + part["messages"] * message


def table(stored: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [
        "# On paper: 1 to 512 nodes",
        "",
        "`python benchmarks/scaling/model.py --write`, from the parts in results.json; 10 Gbit/s, 0.1 ms a hop and "
        "0.1 ms of software for each.",
        "",
        "`--workers`, one worker per node:",
        "",
        "| workload | nodes | round | of it messages | steps/s | efficiency |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in stored["parts"].items():
        alone = part["steps"] / round_seconds(part, 1)
        for nodes in NODES:
            seconds = round_seconds(part, nodes)
            speed = nodes * part["steps"] / seconds
            waiting = 1.0 - round_seconds(part, 1) / seconds
            lines.append(
                f"| {name} | {nodes} | {seconds:.2f} s | {waiting:.0%} | {speed:,.0f} | {speed / alone / nodes:.0%} |"
            )
    part = stored["parts"]["update-bound"]
    rounds = INTERVAL / round_seconds(part, 1)
    hour = 500_000 / (part["steps"] / round_seconds(part, 1)) / 3600  # of a run as `leeward train` makes it
    lines += [
        "",
        f"A population, one member per core ({CORES} a node), an interval of {INTERVAL:.0f} s = {rounds:.0f} updates; "
        f"a member is 500,000 steps, {60 * hour:.1f} minutes:",
        "",
        "| nodes | members at once | members an hour | driver's core busy | take over |",
        "|---|---|---|---|---|",
    ]
    for nodes in NODES:
        members = nodes * CORES
        busy = members * DRIVER / INTERVAL
        slow = max(1.0, busy)
        cost = 1.0 + (part["take over"] + part["checkpoint"]) / INTERVAL
        lines.append(
            f"| {nodes} | {members:,} | {members / hour / slow / cost:,.0f} | {busy:.1%} | "
            f"{1e3 * part['take over']:.0f} ms, {part['checkpoint bytes']:,} bytes |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    text = table(json.loads((HERE / "results.json").read_text()))
    print(text)
    if arguments.write:
        (HERE / "RESULTS_model.md").write_text(text)


if __name__ == "__main__":
    main()
