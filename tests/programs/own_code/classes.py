"""Classes of a program are defined once in each process: reading a value changes none, and what a class was made with travels."""

import abc
import collections
import dataclasses
import functools
import typing
import weakref

import zfabric as zf


class Counted:
    count = 0
    registry = {}

    def __init__(self):
        Counted.count += 1
        self.registry[Counted.count] = True

    def describe(self):
        return "original"


class CodedError(Exception):
    made = 0

    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code
        CodedError.made += 1


class PrivateSlots:
    __slots__ = ("__hidden", "__weakref__", "shown")

    def __init__(self):
        self.__hidden, self.shown = 1, 2

    def both(self):
        return self.__hidden, self.shown


class MoreSlots(PrivateSlots):
    __slots__ = ("__dict__", "third")


class OneSlot:
    __slots__ = "only"


class DescribedSlots:
    __slots__ = {"a": "a description"}


@dataclasses.dataclass(slots=True)
class Point:
    x: int
    rest: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, frozen=True, weakref_slot=True)
class Frozen:
    x: int = 3


@dataclasses.dataclass(kw_only=True, order=True)
class Ordered:
    x: int
    y: int = dataclasses.field(default=2, metadata={"unit": "m"})


class Plugin:
    known = []

    def __init_subclass__(cls, /, key, **keywords):
        super().__init_subclass__(**keywords)
        cls.key = key
        Plugin.known.append(cls)


class PluginA(Plugin, key="a"):
    pass


class PluginB(PluginA, key="b"):
    pass


class Checking(type):
    made = []

    def __new__(mcs, name, bases, namespace, **keywords):
        if bases and "table" not in namespace:
            raise TypeError("table is missing")
        mcs.made.append(name)
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name, bases, namespace, **keywords):
        cls.keywords = keywords

    def __setattr__(cls, name, value):
        if name == "table":
            raise AttributeError("table cannot be set")
        super().__setattr__(name, value)

    def __eq__(cls, other):
        return cls is other

    __hash__ = type.__hash__


class Model(metaclass=Checking, strict=True):
    pass


class User(Model, quick=True):
    table = "users"


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self): ...


class Concrete(Abstract):
    def run(self):
        return super().__repr__()[:9]


@Abstract.register
class Virtual:
    pass


Item = typing.TypeVar("Item")


class Box(typing.Generic[Item]):
    def __init__(self, inside):
        self.inside = inside


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self) -> str: ...


class Named(typing.NamedTuple):
    a: int
    b: str = "x"


Pair = collections.namedtuple("Pair", "x y")


@functools.singledispatch
def kind_of(value):
    return "any"


@kind_of.register
def _(value: int):
    return "int"


@kind_of.register(Counted)
def _(value):
    return "Counted"


class Descriptors:
    @functools.singledispatchmethod
    def of(self, value):
        return "any"

    @of.register
    def _(self, value: int):
        return "int"

    @functools.cached_property
    def cached(self):
        return [1]

    @functools.lru_cache  # noqa: B019 - programs do it
    def remembered(self, value):
        return value

    added = functools.partialmethod(lambda self, a, b: a + b, 1)


class Outer:
    class Inner:
        value = 7


def local_class():
    class Local:
        def name(self):
            return __class__.__name__

    return Local


Local = local_class()


@zf.remote
def same(value):
    return value


@zf.remote
def fails():
    raise CodedError(3)


@zf.remote
def subclass_here():
    class PluginC(PluginB, key="c"):
        pass

    return PluginC.key, len(Plugin.known)


def facts():
    slots, more, point = PrivateSlots(), MoreSlots(), Point(1)
    more.third, more.other = 3, 4
    described, one = DescribedSlots(), OneSlot()
    described.a = one.only = 5
    try:
        Abstract()
        abstract = "made"
    except TypeError:
        abstract = "refused"
    return {
        "slots": (slots.both(), weakref.ref(slots)() is slots, more.both(), more.third, more.other, described.a, one.only),
        "slots as written": (OneSlot.__slots__, DescribedSlots.__slots__),
        "dataclasses": (point, Point(2, [1]), Frozen(), weakref.ref(Frozen(1))(), Ordered(x=1) < Ordered(x=2)),
        "fields": [(each.name, dict(each.metadata), each.default) for each in dataclasses.fields(Ordered)],
        "plugins": ([each.__name__ for each in Plugin.known[:2]], PluginB.key),
        "metaclass": (User.table, User.keywords, Model.keywords, sorted(Checking.made)),
        "abstract": (abstract, Concrete().run()[:5], isinstance(Virtual(), Abstract), issubclass(int, Abstract)),
        "typing": (Box[int](3).inside, typing.get_args(Box[Item]) == (Item,), isinstance(Concrete(), Runs), isinstance(3, Runs)),
        "tuples": (Named(1)._replace(b="y"), Pair(1, 2)._asdict()),
        "dispatch": (kind_of(3), kind_of("s"), Descriptors().of(1), Descriptors().of("s")),
        "descriptors": (Descriptors().cached, Descriptors().remembered(4), Descriptors().added(2)),
        "nested": (Outer.Inner.value, Local().name()),
    }


zf.init(num_cpus=1)

# Reading a value changes nothing.
first = Counted()
ref = zf.put(first)
for _ in range(4):
    Counted()
Counted.describe = lambda self: "patched"
for value in (zf.get(ref), zf.get(same.remote(first))):
    assert type(value) is Counted
    assert (Counted.count, len(Counted.registry), value.describe()) == (5, 5, "patched")
before = CodedError.made
error = zf.get(fails.remote(), return_exceptions=True)
assert isinstance(error, CodedError)
assert (error.code, str(error), CodedError.made) == (3, "code 3", before)

# What a class was made with travels.
here = facts()
there = zf.get(zf.remote(facts).remote())
for name, value in here.items():
    assert there[name] == value, (name, value, there[name])
assert zf.get(subclass_here.remote()) == ("c", 3)
assert len(Plugin.known) == 2
for value in (PrivateSlots(), Point(1), Frozen(), Named(1), Pair(1, 2), Box(1), Outer.Inner(), Local(), User(), Ordered(x=1)):
    assert type(zf.get(zf.put(value))) is type(value)
    assert type(zf.get(same.remote(value))) is type(value)


# Constants of a class, and refs inside, are what they are in the program.
class Shade:
    def __init__(self, name):
        self.name = name

    def is_dark(self):
        return self is Shade.DARK


Shade.DARK = Shade("dark")
Shade.NEXT = Shade("next")
Shade.NEXT.after = Shade.NEXT
assert zf.get(zf.put([Shade.DARK, Shade.NEXT])) == [Shade.DARK, Shade.NEXT]
looks = zf.remote(lambda shade: (shade.is_dark(), shade is Shade.DARK, Shade.NEXT.after is Shade.NEXT, shade.name))
assert [zf.get(looks.remote(Shade.DARK)) for _ in range(2)] == [(True, True, True, "dark")] * 2
assert zf.get(looks.remote(Shade("light"))) == (False, False, True, "light")


class HasRef:
    ref = zf.put(list(range(1000)))

    def read(self):
        return len(zf.get(self.ref))


one, two = zf.put(HasRef()), zf.put(HasRef())
del one
HasRef.ref = None
assert zf.get(zf.remote(lambda value: value.read()).remote(two)) == 1000


# A method that is replaced, or added, is sent; a task's own changes stay.
class Replaced:
    def run(self):
        return "first"


calls = zf.remote(lambda value: [getattr(value, name)() for name in ("run", "more") if hasattr(value, name)])
assert zf.get(calls.remote(Replaced())) == ["first"]
Replaced.run = lambda self: "second"
Replaced.more = lambda self: "added"
assert [zf.get(calls.remote(Replaced())) for _ in range(2)] == [["second", "added"]] * 2


def local_recursion():
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    total = 0

    class Adds:
        def add(self, n):
            nonlocal total
            total += n

    def read():
        return total

    return factorial, even, Adds, read


factorial, even, Adds, read = local_recursion()
assert zf.get([zf.remote(factorial).remote(5), zf.remote(even).remote(7)]) == [120, False]
shares = zf.remote(lambda adds, read: (adds.add(3), read())[1])
assert [zf.get(shares.remote(Adds(), read)) for _ in range(2)] == [3, 3]
assert read() == 0


# A class that is defined again is a second one, in every worker.
class Again:
    def version(self):
        return 1


old, OldAgain = Again(), Again
assert zf.get(zf.remote(lambda value: (value.version(), type(value) is Again)).remote(old)) == (1, True)


class Again:
    def version(self):
        return 2


@zf.remote
def versions(old, new):
    return old.version(), new.version(), Again().version(), type(old) is Again, type(new) is Again


assert zf.get(versions.remote(old, Again())) == (1, 2, 2, False, True)
assert type(zf.get(zf.put(old))) is OldAgain


# An actor keeps what it has put into its class.
@zf.remote
class Cache:
    known = {}

    def add(self, key, _value):
        Cache.known[key] = True
        return len(self.known)


class Shared:
    uses = 0


class User2:
    def use(self, _value):
        Shared.uses += 1
        return Shared.uses


cache, user = Cache.remote(), zf.remote(User2).remote()
assert [zf.get(cache.add.remote(key, first)) for key in range(3)] == [1, 2, 3]
assert [zf.get(user.use.remote(Shared())) for _ in range(3)] == [1, 2, 3]
assert Shared.uses == 0

# What cannot be sent is named.
import threading  # noqa: E402


class Locked:
    lock = threading.Lock()


try:
    zf.put(Locked())
    raise AssertionError("a lock was sent")
except zf.exceptions.SerializationError as refused:
    text = str(refused)
assert "value.<class Locked>.lock -> _thread.lock" in text, text
print("as in the program")
