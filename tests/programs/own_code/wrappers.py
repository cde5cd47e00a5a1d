"""The signature of a wrapper counts, not that of the function that it wraps."""

import asyncio
import functools
import inspect

import zfabric as zf


def injects(function):
    @functools.wraps(function)
    def wrapper(self, x):
        return function(self, x, 100)

    return wrapper


def retrying(function):
    @functools.wraps(function)
    def wrapper(*args, retries=1, **keywords):
        return retries, function(*args, **keywords)

    return wrapper


def injects_async(function):
    @functools.wraps(function)
    async def wrapper(x):
        return await function(x, 100)

    return wrapper


def injects_async_method(function):
    @functools.wraps(function)
    async def wrapper(self, x):
        return await function(self, x, 100)

    return wrapper


def declares(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args, 1)

    wrapper.__signature__ = inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)])
    return wrapper


def builds(function):
    @functools.wraps(function)
    def wrapper(self, x, *, extra=0):
        function(self, x + extra)

    return wrapper


class Adds:
    @builds
    def __init__(self, start):
        self.start = start

    @injects
    def add(self, x, y):
        return self.start + x + y

    @functools.lru_cache  # noqa: B019 - programs do it
    def cached(self, x):
        return x


class Awaits:
    @injects_async_method
    async def add(self, x, y):
        return x + y


@retrying
def plain(x):
    return x


@injects_async
async def waits(x, y):
    await asyncio.sleep(0)
    return x + y


@declares
def declared(x, y):
    return x, y


@functools.cache
def cached(x):
    return x


def refused(call):
    try:
        call()
    except TypeError as error:
        return str(error)
    raise AssertionError("it was accepted")


zf.init(num_cpus=1)
assert zf.get(zf.remote(plain).remote(1, retries=5)) == (5, 1)
assert zf.get(zf.remote(waits).remote(1)) == 101
assert zf.get(zf.remote(declared).remote(1)) == (1, 1)
assert zf.get(zf.remote(plain).map([1, 2])) == [(1, 1), (1, 2)]
actor = zf.remote(Adds).remote(1, extra=2)
assert zf.get([actor.add.remote(1), actor.cached.remote(2)]) == [104, 2]
assert zf.get(zf.remote(Awaits).remote().add.remote(1)) == 101
with zf.Executor() as executor:
    assert executor.submit(plain, 1, retries=5).result() == (5, 1)
assert "unexpected keyword argument 'y'" in refused(lambda: zf.remote(waits).remote(1, y=2))
assert "'x'" in refused(lambda: zf.remote(cached).remote())
assert "too many" in refused(lambda: actor.add.remote(1, 2))
assert "'y'" in refused(lambda: zf.remote(Adds).remote(1, y=2))
print("as in the program")
