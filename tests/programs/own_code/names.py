"""Names of a program are found in ``__main__`` of its workers, in the version in which they were sent."""

import dataclasses
import io
import multiprocessing
import pickle
import sys
import threading
import typing

import joblib

import zfabric as zf

print("run")  # The test counts these lines: the file runs once.


class Thing:
    field: "UserId"
    others: "list[Other]"


class Other:
    pass


class Outer:
    class Inner:
        pass


UserId = typing.NewType("UserId", int)
Item = typing.TypeVar("Item", bound=Thing)
Parameters = typing.ParamSpec("Parameters")
MISSING = object()


class _Unset:
    pass


UNSET = _Unset()


def square(x):
    return x * x


def hinted(x: "Thing", y: typing.List["Other"]) -> "UserId": ...  # noqa: UP006


def with_defaults(x=MISSING, y=UNSET):
    return x is MISSING, y is UNSET


def task(function, *args):
    return zf.get(zf.remote(function).remote(*args))


def reloaded(value):
    return pickle.loads(pickle.dumps(value))


def stored(value):
    file = io.BytesIO()
    joblib.dump(value, file)
    return joblib.load(io.BytesIO(file.getvalue()))


def mapped(function):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.map(function, [2, 3])


zf.init(num_cpus=2)

# Plain pickle, joblib, process pools and typing find them.
assert task(lambda: (type(reloaded(Thing())) is Thing, type(stored(Thing())) is Thing, reloaded(square) is square)) == (True,) * 3
assert task(lambda value: type(reloaded(value)) is Outer.Inner, Outer.Inner())
assert task(mapped, square) == [4, 9]
assert task(lambda: mapped(square)) == [4, 9]
assert task(lambda: UserId(3)) == 3
assert task(lambda: [reloaded(each) is each for each in (UserId, Item, Parameters)]) == [True] * 3
assert task(lambda: UserId) is UserId
assert task(lambda: Item) is Item
assert task(lambda: square) is square
for function in (lambda: typing.get_type_hints(hinted), lambda: typing.get_type_hints(Thing)):
    assert task(function) == function()


# What annotations name need not be sent.
class Locked:
    lock = threading.Lock()


data = threading.Lock()


def annotated(x: "int", pool: "Locked | None", kind: "typing.Literal['data']" = "data") -> "Missing":  # noqa: F821
    return pickle.loads(pickle.dumps(square))(x), __name__


assert task(annotated, 3, None) == (9, "__main__")


# Methods see what the program has bound anew, and arguments change nothing for what runs.
class Scales:
    def run(self):
        return scale, helper()


def helper():
    return "first"


scale = 1
runs = zf.remote(lambda value, inner: (scale, value.run(), inner()))
assert zf.get(runs.remote(Scales(), lambda: scale)) == (1, (1, "first"), 1)
scale = 2


def second():
    return "second"


helper = second  # noqa: F811


both_scales = zf.remote(lambda value: (scale, value.run()))
assert zf.get(both_scales.remote(Scales())) == (2, (2, "second"))
assert zf.get(runs.remote(Scales(), lambda: scale))[0] == 1

# What stands for itself is the same there.
assert task(with_defaults) == (True, True)
assert task(with_defaults, MISSING, UNSET) == (True, True)
assert task(with_defaults, 1, 2) == (False, False)
empty = type("Empty", (), {"__module__": "__main__"})()
assert zf.get(zf.put(empty)) is not empty
lock = threading.Lock()
try:
    zf.put(lock)
    raise AssertionError("a lock was sent")
except zf.exceptions.SerializationError:
    pass
assert zf.get(zf.put([MISSING, UNSET, dataclasses.MISSING, dataclasses.KW_ONLY])) == [
    MISSING,
    UNSET,
    dataclasses.MISSING,
    dataclasses.KW_ONLY,
]


@dataclasses.dataclass
class Base:
    a: int
    b: list = dataclasses.field(default_factory=list)


def subclass():
    @dataclasses.dataclass
    class Sub(Base):
        z: int = 9

    required = [each.name for each in dataclasses.fields(Base) if each.default is each.default_factory is dataclasses.MISSING]
    return required, repr(Sub(1))


assert task(subclass) == (["a"], "subclass.<locals>.Sub(a=1, b=[], z=9)")


# Functions and classes of one program share its names, and tasks do not change the program's.
def set_there():
    sys.modules["__main__"].made_by_a_task = 5


task(set_there)
assert "made_by_a_task" not in globals()
counter = 0


class Counter:
    def add(self):
        global counter
        counter += 1


def count():
    Counter().add()
    return counter


assert task(count) >= 1
assert counter == 0
config = {}


class Reader:
    def read(self):
        return config.get("x"), config.get("y")


zf.get(zf.put(Reader()))


def write_and_read(x):
    config["x"] = x
    return Reader().read()


assert [task(write_and_read, x) for x in (1, 2)] == [(1, None), (2, None)]
config["y"] = 5
assert [task(write_and_read, x) for x in (3, 4)] == [(3, 5), (4, 5)], "what has changed is sent anew"


# Each function has the names in the version in which it was sent.
refs = []
for rate in range(8):

    @zf.remote
    def train():
        return rate  # noqa: B023 - the value of that moment is meant

    refs += [train.remote(), train.remote(), zf.remote(lambda inner: inner()).remote(lambda: rate)]  # noqa: B023
assert zf.get(refs) == [rate for rate in range(8) for _ in range(3)]
refs = []
for rate in range(8):

    @zf.remote
    async def waits():
        import asyncio

        await asyncio.sleep(0.01)
        return rate  # noqa: B023 - the value of that moment is meant

    refs += [waits.remote(), waits.remote()]
assert zf.get(refs) == [rate for rate in range(8) for _ in range(2)]


# Data with parts in common stays together.
shared = [1]
one, other = {"part": shared}, {"part": shared}


def first():
    one["part"].append(2)
    return len(one["part"])


def both():
    one["part"].append(3)
    return other["part"] is one["part"]


assert task(first) == 2
assert task(both) is True
print("as in the program")
