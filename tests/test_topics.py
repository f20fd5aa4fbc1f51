"""Topics of messages: their words name random streams, so they stay."""

from __future__ import annotations

import pytest

from bymi.core.topic import FIRST_HALF, GRADIENT, PARAMETERS, PREMIX, SECOND_HALF, TRACKER, Part, Topic
from tests.golden import stored

HALVES = (FIRST_HALF, SECOND_HALF)
TOPICS = (*HALVES, GRADIENT, PARAMETERS, PREMIX, TRACKER, *(Topic(half.kind, at_start=True) for half in HALVES))


@pytest.mark.parametrize("topic", TOPICS)
def test_streams_of_attacks_are_named_after_topics(topic: Topic) -> None:
    assert f"attack {topic.stream_name()}" in stored.read_names()["random streams"]


@pytest.mark.parametrize("half", HALVES)
def test_an_answer_names_its_asker(half: Topic) -> None:
    answer = half.to(17)
    assert f"attack {answer.stream_name()}".replace("17", "{node}") in stored.read_names()["random streams"]
    assert (answer.kind, answer.part, answer.asker) == (half.kind, half.part, 17)
    assert Topic(half.kind, at_start=True, asker=17).stream_name() == f"{half.kind} at the start for 17"


def test_topics_are_keys_by_value() -> None:
    assert Topic("first half") == FIRST_HALF
    assert len({topic.stream_name() for topic in TOPICS}) == len(set(TOPICS)) == len(TOPICS)


@pytest.mark.parametrize(("topic", "part"), [(GRADIENT, "training"), (PARAMETERS, "message"), (PREMIX, "tracker")])
def test_a_topic_belongs_to_a_part_of_the_protocol(topic: Topic, part: Part) -> None:
    assert topic.part == part
