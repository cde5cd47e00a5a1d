"""Enumerations of a program are the same in tasks: members, aliases, attributes, combined flags."""

import datetime
import enum
import pickle

import zfabric as zf


class Color(enum.StrEnum):
    RED = "r"
    BLUE = "b"


class Number(enum.IntEnum):
    ONE = 1
    UNO = 1
    TWO = 2


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()
    BOTH = READ | WRITE


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Planet(enum.Enum):
    EARTH = (1.0, 2.0)
    MARS = (3.0, 4.0)

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

    @property
    def density(self):
        return self.mass / self.radius


class Labelled(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_ = value
        made.label = label
        return made

    FIRST = (0, "first")
    SECOND = (1, "second")


class Day(datetime.date, enum.Enum):
    BEGIN = 2020, 1, 2


class Lenient(enum.Enum):
    KNOWN = 1

    def chosen(self, other=None):
        return other or Lenient.KNOWN

    @classmethod
    def _missing_(cls, value):
        return cls.KNOWN


class Unhashable(enum.Enum):
    EMPTY = []
    FULL = [1]


Functional = enum.Enum("Functional", "A B")
KINDS = (Color, Number, Access, Bits, Planet, Labelled, Day, Lenient, Unhashable, Functional)


@zf.remote
def seen(member, name):
    kind = type(member)
    assert member is kind[name], member.name
    assert member in list(kind) or name in kind.__members__
    assert kind(member.value) is member
    assert pickle.loads(pickle.dumps(member)) is member
    return member, member.name, str(member)


@zf.remote
def facts():
    combined = Access.READ | Access.RUN
    return {
        "attribute": Planet.MARS.density,
        "label": Labelled.SECOND.label,
        "alias": (Number.UNO is Number.ONE, list(Number.__members__)),
        "composite": (Access.BOTH.name, Access.READ in Access.BOTH, Access(3) is Access.BOTH),
        "combined": (combined.name, combined is (Access.READ | Access.RUN)),
        "missing": Lenient(77).name,
        "texts": f"{Color.RED} {Number.TWO} {Color.RED!r}",
        "key": {Color.RED: 1}[Color.RED],
        "method": Lenient.KNOWN.chosen() is Lenient.KNOWN,
    }


zf.init(num_cpus=1)
for kind in KINDS:
    for name, member in kind.__members__.items():
        assert zf.get(zf.put(member)) is member, name
        assert zf.get(seen.remote(member, name)) == (member, member.name, str(member))
        assert zf.get(seen.remote(member, name))[0] is member, name
assert zf.get(facts.remote()) == facts._function()
combined = Access.READ | Access.RUN
assert zf.get(zf.put(combined)) is combined
assert [type(each) for each in zf.get(zf.put([combined, Planet.EARTH]))] == [Access, Planet]
print("as in the program")
