"""Looks for seeds that show a mutation: `python -m tools.mutation_seeds no_epoch_fencing --seeds 0-499 --jobs 2`.

After a change to a broker a seed is another run, so a recorded seed may no longer show its mutation. This prints the
seeds that do; record one of them in tests/sim and in docs/SIMULATOR.md. Without a name it tries every mutation as the
tests do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.sim.mutations import CAUGHT, Mutation, is_shown, seeds_to_try
from tidelog.lab.ambushes import AMBUSHES
from tidelog.lab.plans import plan_of
from tidelog.lab.sweep import prepare

MUTATIONS: dict[str, Mutation] = {mutation.__name__: mutation for mutation in CAUGHT}
_AT_ONCE = 8


def _shows(name: str, seed: int) -> bool:
    return is_shown(MUTATIONS[name], seed)


def _shown(pool: ProcessPoolExecutor, name: str, seeds: Sequence[int], wanted: int) -> Iterator[int]:
    """The first seeds that show the mutation, about as many as are wanted."""
    for start in range(0, len(seeds), _AT_ONCE):
        part = seeds[start : start + _AT_ONCE]
        for seed, is_one in zip(part, pool.map(_shows, [name] * len(part), part), strict=True):
            if is_one:
                yield seed
                wanted -= 1
        if wanted <= 0:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MUTATION", help="a function of tests/sim/*mutations.py")
    parser.add_argument("--seeds", default="0-499", help="the first and the last to try; the default is 0-499")
    parser.add_argument("--ambush", choices=AMBUSHES, help="try only seeds that lay this ambush")
    parser.add_argument("--wanted", type=int, default=4, help="stop after so many; the default is 4")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split("-"))
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn"), initializer=prepare) as pool:
        for name in asked.names or MUTATIONS:
            seeds = range(first, last + 1) if asked.names else seeds_to_try(MUTATIONS[name])
            tried = [seed for seed in seeds if asked.ambush in (None, plan_of(seed).ambush)]
            found = [f"{seed} {plan_of(seed).ambush}".strip() for seed in _shown(pool, name, tried, asked.wanted)]
            print(f"{name}: {', '.join(found) or f'none of {len(tried)} seeds'}", flush=True)


if __name__ == "__main__":
    main()
