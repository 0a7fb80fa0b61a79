"""Matching of jobs with hosts, one host for each job, so that the sum of the gains is largest.

Kuhn, "The Hungarian method for the assignment problem", 1955, with potentials: O(n^2 (n + m)) for n jobs and m hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def matched(gains: Sequence[Mapping[str, float]]) -> dict[int, str]:
    """Return the host of each matched job by the job's number. Their gains have the largest sum.

    gains: for each job, its gain with each host that it may have, above 0. A job may stay without a host.
    """
    hosts = sorted({name for row in gains for name in row})
    numbers = {name: number for number, name in enumerate(hosts)}
    jobs, columns = len(gains), len(hosts) + len(gains)  # one column for each job that stays without a host
    costs = [[0.0] * columns for _ in gains]
    for row, named in zip(costs, gains, strict=True):
        for name, gain in named.items():
            row[numbers[name]] = -gain
    taken = _assign(costs, jobs, columns)
    found = {}
    for column, job in taken.items():
        if column < len(hosts) and hosts[column] in gains[job]:
            found[job] = hosts[column]
    return dict(sorted(found.items()))


def _assign(costs: Sequence[Sequence[float]], jobs: int, columns: int) -> dict[int, int]:
    """Return the job of each used column: an assignment of all jobs with the least sum of costs."""
    infinite = float("inf")
    of_job, of_column = [0.0] * jobs, [0.0] * columns
    owner: dict[int, int] = {}
    for job in range(jobs):
        least, before = [infinite] * columns, [-1] * columns
        visited: set[int] = set()
        current, column = job, -1
        while True:
            row, base = costs[current], of_job[current]
            delta, following = infinite, -1
            for one in range(columns):
                if one in visited:
                    continue
                cost = row[one] - base - of_column[one]
                if cost < least[one]:
                    least[one], before[one] = cost, column
                if least[one] < delta:
                    delta, following = least[one], one
            of_job[job] += delta
            for one in visited:
                of_job[owner[one]] += delta
                of_column[one] -= delta
            for one in range(columns):
                if one not in visited:
                    least[one] -= delta
            column = following
            if column not in owner:
                break
            visited.add(column)
            current = owner[column]
        while column >= 0:  # along the path, each job moves to the next column
            previous = before[column]
            owner[column] = job if previous < 0 else owner[previous]
            column = previous
    return owner
