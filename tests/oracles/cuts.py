"""Which tokens a policy keeps: plain Python, one token at a time."""

from math import exp

from jddtree.sampling import Sample


def kept_tokens(logits: list[float], policy: Sample) -> list[int]:
    """Ids in increasing order."""
    best = max(logits)
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weight = {token: exp((logits[token] - best) / policy.temperature) for token in ranked}
    ranked = ranked[: policy.top_k]
    whole, so_far, nucleus = sum(weight[token] for token in ranked), 0.0, []
    for token in ranked:
        nucleus.append(token)
        so_far += weight[token]
        if so_far >= policy.top_p * whole:
            break
    if policy.top_p == 1:
        nucleus = ranked
    return sorted(token for token in nucleus if weight[token] >= policy.min_p)
