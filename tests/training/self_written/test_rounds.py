"""One round: texts first, then tasks about them; what is put aside never comes back in a question."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from aquiline.training.examples import TrainingExample
from aquiline.training.self_written.dialogues import Dialogue, DialogueWriter
from aquiline.training.self_written.rounds import Text, gather_material, write_round
from aquiline.training.self_written.settings import SHARES, SelfWrittenSettings
from aquiline.training.self_written.turns import UserTurn

EXAMPLE = TrainingExample((1, 2), (False, True))
CODE = "Here it is:\n```python\nprint(1)\n```\nIt prints one."


def document(name: str) -> str:
    """A text of sixty words in ten sentences, none like another."""
    rng = random.Random(name)
    return " ".join(f"The {name} {' '.join(rng.choices('abcdefghijk', k=3))} {n}." for n in range(10))


@dataclass
class FakeWriter:
    """Answers every turn with a document of its own; every other one is put aside."""

    settings: SelfWrittenSettings
    begun: list[Sequence[UserTurn]] = field(default_factory=list)
    followed: int = 0

    def begin(self, turns: Sequence[UserTurn], rng: random.Random) -> list[Dialogue]:
        first = sum(map(len, self.begun))
        self.begun.append(turns)
        return [self._dialogue(first + index, turn) for index, turn in enumerate(turns)]

    def follow_up(self, dialogues: Sequence[Dialogue], turns: Sequence[UserTurn], rng: random.Random) -> list[Dialogue]:
        self.followed += len(turns)
        assert all(dialogue.has_ended for dialogue in dialogues)
        return [replace(dialogue, fingerprint=-dialogue.fingerprint) for dialogue in dialogues]

    def puts_aside(self, dialogue: Dialogue) -> bool:
        return dialogue.fingerprint % 2 == 1

    def _dialogue(self, number: int, turn: UserTurn) -> Dialogue:
        messages = ({"role": "user", "content": turn.text}, {"role": "assistant", "content": document(f"owl{number}")})
        return Dialogue(turn, messages, EXAMPLE, number, has_ended=number % 3 > 0)


def run_round(number: int = 0, earlier: Sequence[Text] = ()) -> tuple[FakeWriter, list[Dialogue]]:
    writer = FakeWriter(SelfWrittenSettings(seed=1, follow_up_share=0.25))
    counts = dict.fromkeys(SHARES, 20)
    return writer, write_round(cast(DialogueWriter, writer), number, counts, earlier)


def test_tasks_are_about_texts_that_are_not_put_aside() -> None:
    writer, _ = run_round()
    texts, tasks = writer.begun
    assert {turn.category for turn in texts} == {"writing", "other languages"}
    asked = "\n".join(turn.text for turn in tasks)
    found = {number for number in range(len(texts)) if f"The owl{number} " in asked}
    assert len(found) > 5 and not [number for number in found if number % 2 == 1]


def test_every_turn_is_asked_once_and_a_share_goes_on() -> None:
    writer, dialogues = run_round()
    assert [len(turns) for turns in writer.begun] == [40, 160] and len(dialogues) == 200
    assert writer.followed == 50 == sum(dialogue.fingerprint < 0 for dialogue in dialogues)
    assert sorted(abs(dialogue.fingerprint) for dialogue in dialogues) == list(range(200))


def test_a_round_depends_on_its_number_and_the_round_before() -> None:
    again, other = run_round()[0].begun, run_round(1)[0].begun
    assert run_round()[0].begun == again != other
    later = run_round(0, [Text("chat", document("heron"))])[0].begun
    assert later[0] == again[0] and any("The heron " in turn.text for turn in later[1])


def test_material_is_what_can_be_worked_on() -> None:
    looping = "It was said to have been brought from far away. " * 10
    earlier = [
        Text("chat", document("owl")),
        Text("writing", document("crow")),
        Text("summarising", document("gull")),
        Text("chat", "Too short."),
        Text("chat", looping),
        Text("code", CODE),
        Text("code", "No program."),
    ]
    french = UserTurn("other languages", "Écris un texte.", True, "French")
    messages = ({"role": "user", "content": french.text}, {"role": "assistant", "content": document("aigle") + " Et"})
    material = gather_material(earlier, [Dialogue(french, messages, EXAMPLE, 0, True)])
    assert material.documents == [document("owl"), document("crow")]
    assert material.programs == [CODE]
    assert material.foreign is not None and list(material.foreign["French"]) == [document("aigle")]
    assert not material.foreign["German"]
