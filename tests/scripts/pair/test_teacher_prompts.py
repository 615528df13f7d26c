"""Prompts of the teacher: different, complete, in the asked shares, and openings that fit them."""

import re
from collections import Counter

from scripts.pair.teacher_prompts import KINDS, SHARES, distinct_requests


def test_requests():
    made = distinct_requests(3000, 5, ("gizmo",))
    assert made == distinct_requests(3000, 5, ("gizmo",)) != distinct_requests(3000, 6, ("gizmo",))
    assert len({request.prompt for request in made}) == 3000
    counts = Counter(request.kind for request in made)
    for kind, share in SHARES.items():
        assert abs(counts[kind] / 3000 - share) < 0.04
    for request in made:
        assert not re.search(r"[{}\[\]|]|  |\ba [aeio]", request.prompt.replace("a one", "")), request.prompt
        assert request.prompt[0].isupper()
        assert not re.search(r"[{}\[\]|]", request.opening)
    assert any("gizmo" in request.prompt for request in made)
    openings = {request.opening for request in made}
    assert "" in openings
    assert len(openings) > 200


def test_every_template_is_used():
    made = [request.prompt for request in distinct_requests(6000, 0, ())]
    for kind, (templates, _, _) in KINDS.items():
        for template in templates:
            plain = re.escape(re.sub(r"\[[^\]]*\]|\{\w+\}", "\0", template)).replace("\0", ".*")
            assert any(re.match(plain, prompt, re.IGNORECASE) for prompt in made), (kind, template)
