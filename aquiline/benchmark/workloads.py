"""Named sets of prompts for measurements, so that figures with one name are about one thing.

All texts were written for this purpose. `summary`, `retrieval` and `edit` give a document of some 600 tokens to a small
chat model's tokenizer and ask for what is in it; `chat` and `code` give next to nothing to copy from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aquiline.errors import InvalidParameterError

LIGHTHOUSE = """\
The old lighthouse at Marrow Point was built in 1874 by two brothers, Elias and Tobias Crane, who had come from
the north with a cart, a mule and a set of drawings. The tower is thirty-one metres tall and stands on a shelf
of black basalt that the sea covers twice a day. For the first eleven years its lamp burned whale oil; in 1885
it was changed to paraffin, and in 1931 to electricity.

The keeper had to climb one hundred and sixty-two steps to reach the lantern room. In winter the stairs were
covered with ice, and a rope was fixed to the wall so that nobody would slip. The keeper wrote down the weather
every four hours, and the books in which he did so are kept in the town library to this day. They show that the
worst storm came on the night of 9 February 1911, when a wave broke three panes of glass at the very top of the
tower.

In 1962 the lighthouse became automatic and the last keeper, Margaret Doyle, moved to the village. She had lived
in the tower for nineteen years and knew every ship by the sound of its engine. She used to say that the sea has
no memory, but that the people who live beside it need one. After her death in 1990 the village council turned
the keeper's house into a small museum, which is open from April to October, every day except Monday, from ten
in the morning until five in the afternoon.

The museum has four rooms. The first shows the tools of the builders, the second the old lamp with its lens of
two hundred and eight prisms, the third the letters that keepers wrote to their families, and the fourth a model
of the reef with all the wrecks that are known. Visitors may climb the tower in groups of six at most, and
children under eight must be carried. The ticket costs four crowns, and those who arrive by bicycle pay half.

The reef itself has been a place of study since 1928, when a school teacher named Ruth Hallam began to count the
seals that rest on it at low tide. In her first summer she counted forty-one of them; in the summer of 2019
there were three hundred and twelve. The seals come in late May and leave when the first autumn storms begin.
They share the reef with cormorants, which dry their wings on the iron posts that once held a bell. The bell
rang with every wave and warned ships in fog; it was stolen in 1947 and has never been found, though every child
in the village claims to know where it is.
"""

BEES = """\
A colony of honey bees in a temperate garden counts about ten thousand workers in early spring and up to fifty
thousand at midsummer. Each worker lives for six weeks in the warm season. For the first three days she cleans
cells; from the fourth day she feeds older larvae, and from the seventh day younger ones. Between the twelfth
and the eighteenth day she builds comb, for only then do the eight glands under her abdomen give enough wax.
After that she guards the entrance for a day or two, and from about the twenty-first day until the end of her
life she flies out to gather nectar, pollen, water and resin.

A forager visits one kind of flower at a time and stays with it as long as it yields. On one flight she carries
up to forty milligrams of nectar, which is nearly half of her own weight, and she needs to visit between fifty
and one hundred flowers to gather that much. When she comes home and has found a rich place, she dances on the
comb. The angle between the straight part of her dance and the vertical is the angle between the place and the
sun; the longer the straight part lasts, the farther away the place is, and one second stands for roughly one
kilometre.

Nectar becomes honey in two steps. First house bees pass it from mouth to mouth and add an enzyme that splits
its sugar; then they spread it in thin films over the cells and fan with their wings until less than eighteen
per cent of it is water. Only then do they close the cell with a lid of wax. A strong colony needs about twenty
kilograms of honey to live through the winter, in which it does not sleep but sits in a dense ball and keeps its
middle at twenty-five degrees by trembling with the muscles of flight.

The beekeeper looks into the hive every nine days in May and June, because a new queen needs sixteen days from
egg to flight and the old one leaves with half of the colony when the first royal cell is closed, which is on
the ninth day. Whoever finds royal cells in time can divide the colony instead of losing a swarm. In July the
honey is taken, and at the end of September every hive must be fed and treated against mites.

Bees have many enemies. Wasps enter weak colonies in August and steal what they find; the wax moth lays its eggs
in old comb; woodpeckers hammer holes into wooden hives in hard winters. The worst is a mite as large as the
head of a pin, which came to Europe in 1977. It breeds in closed cells and weakens the larvae, and a colony that
is not treated dies within three years.
"""

ORDERS = """\
def monthly_totals(orders):
    totals = {}
    for order in orders:
        month = order["date"][:7]
        amount = order["price"] * order["count"]
        if month in totals:
            totals[month] = totals[month] + amount
        else:
            totals[month] = amount
    return totals


def best_month(orders):
    totals = monthly_totals(orders)
    best = None
    for month in totals:
        if best is None or totals[month] > totals[best]:
            best = month
    return best
"""

WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "chat": (
        "Explain to a child of eight why the sky is blue and the evening sky is red.",
        "Plan a weekend in a small town by a lake for a family that has no car.",
        "What should somebody know before adopting an old dog? Give five pieces of advice.",
        "Write a short letter to a neighbour whose music is too loud at night. Be friendly.",
    ),
    "code": (
        "Write a Python function that takes a list of words and returns the longest one that reads the same backwards.",
        "Write a Python class for a bank account with deposit, withdraw and a list of all transactions.",
        "Explain what a binary search does and write it in Python, with a loop and without recursion.",
        f"Add type annotations and docstrings to this code and give back all of it.\n\n{ORDERS}",
    ),
    "summary": (
        f"Summarise the text in a few sentences, using its own words.\n\n{LIGHTHOUSE}",
        f"Summarise the text in a few sentences, using its own words.\n\n{BEES}",
    ),
    "retrieval": (
        f"Which part of the text speaks of the last keeper? Quote that part exactly.\n\n{LIGHTHOUSE}",
        f"How does a bee tell others where food is? Quote the sentences of the text that answer this.\n\n{BEES}",
        f"What is shown in the rooms of the museum? Quote the text.\n\n{LIGHTHOUSE}",
        f"How does nectar become honey? Quote the text.\n\n{BEES}",
    ),
    "edit": (
        f"Correct the spelling mistakes in the text, if there are any, and give back the whole text.\n\n{LIGHTHOUSE}",
        f"Rename `orders` to `sales` everywhere and give back all of the code.\n\n{ORDERS}",
    ),
}


def workload(name: str) -> Sequence[Sequence[Mapping[str, str]]]:
    """The conversations of a named workload.

    Raises:
        InvalidParameterError: there is none of this name.
    """
    if name not in WORKLOADS:
        raise InvalidParameterError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return [[{"role": "user", "content": text}] for text in WORKLOADS[name]]
