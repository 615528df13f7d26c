"""How far a prompt is, told where there is no terminal."""

from jddtree.reading import QUIET, reading


def test_lines_come_after_a_while_and_then_more_rarely(capsys):
    times = iter([0.0, QUIET / 2, QUIET, QUIET * 1.5, QUIET * 2, QUIET * 5])
    with reading(lambda: next(times)) as tell:
        for done in (1000, 2000, 3000, 4000, 5000):
            tell(done, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "reading the prompt: 2,000 of 5,000 tokens",
        "reading the prompt: 4,000 of 5,000 tokens",
    ]
