"""Runs many clients and kills half of them at random instants; needs nothing but Python.

    python3 clients.py PROGRAM --clients 200 --at-once 4 --seed 1

It runs on the host or in a guest alike and prints one JSON object: how many ended well, how many
were killed, and what those that failed said.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time

#: What a client does, and the number of calls that is about half a second's work.
KINDS = {
    "copies": 1500,
    "launches": 1500,
    "maps": 1500,
    "events": 1500,
    "callbacks": 1500,
    "objects": 1500,
    "builds": 40,
    "mixed": 1500,
}
THREADS = 3
PAUSE_US = 50
POLL_S = 0.01
CLIENT_LIMIT_S = 300.0
VICTIM_FACTOR = 1000  # a client that is to be killed must not be done before, however fast it is


class Client:
    """One client, and when it is to be killed: seconds after its start, or never."""

    def __init__(self, program: str, number: int, seed: int, kill_after_s: float | None) -> None:
        kind = list(KINDS)[number % len(KINDS)]
        amount = KINDS[kind] * (1 if kill_after_s is None else VICTIM_FACTOR)
        words = [kind, amount, THREADS, seed + number, PAUSE_US]
        self.process = subprocess.Popen(
            [program, *(str(word) for word in words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.name = f"{number} ({kind})"
        self.begin_s = time.monotonic()
        self.kill_after_s = kill_after_s
        self.killed = False

    def ended(self) -> bool:
        """Whether it has ended; kills it when its time has come."""
        if self.process.poll() is not None:
            return True
        passed_s = time.monotonic() - self.begin_s
        if self.kill_after_s is not None and passed_s > self.kill_after_s:
            self.process.kill()
            self.killed = True
        elif passed_s > CLIENT_LIMIT_S:
            self.process.kill()
        return False

    def said(self) -> str:
        """Its last words; collects it."""
        return self.process.communicate()[1].decode(errors="replace")[-500:]


def run(program: str, clients: int, at_once: int, seed: int, life_s: float) -> dict[str, object]:
    """Run all clients. Every other one is killed within its first `life_s` seconds."""
    generator = random.Random(seed)
    running: list[Client] = []
    killed = completed = begun = 0
    failures = []
    while begun < clients or running:
        while begun < clients and len(running) < at_once:
            kill_after_s = generator.uniform(0.0, life_s) if begun % 2 else None
            running.append(Client(program, begun, seed, kill_after_s))
            begun += 1
        for client in [client for client in running if client.ended()]:
            running.remove(client)
            said = client.said()
            status = client.process.returncode
            if client.killed and status < 0:
                killed += 1
            elif status == 0:
                completed += 1
            else:
                failures.append(f"client {client.name} ended with {status}: {said}")
        time.sleep(POLL_S)
    return {"clients": clients, "completed": completed, "killed": killed, "failures": failures}


def main() -> int:
    """Status 0 if every client that was not killed ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life-s", type=float, default=1.0)
    got = parser.parse_args()
    result = run(got.program, got.clients, got.at_once, got.seed, got.life_s)
    print(json.dumps(result), flush=True)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
