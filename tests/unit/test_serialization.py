"""Values, arguments, functions and errors as bytes, and back."""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
import types

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zfabric.adapters import serialization as s
from zfabric.adapters import task_errors
from zfabric.adapters.generated_values import returning_all
from zfabric.adapters.unpicklable import blame
from zfabric.exceptions import FabricError, GetTimeoutError, SerializationError, TaskError, WorkerCrashedError
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.inside import read_refs


def round_trip(value, **options):
    serialized = s.serialize(value)
    data = serialized.to_bytes()
    assert len(data) == serialized.size
    target = bytearray(serialized.size + 100)
    serialized.write_into(memoryview(target))
    assert bytes(target[: serialized.size]) == data
    return s.deserialize(data, **options)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


# --- values -------------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(plain)
def test_plain_data_is_its_own_pickle(value):
    data = s.serialize(value).to_bytes()
    assert data[0] == 0x80
    assert round_trip(value) == value
    fast = s.serialize_fast(value)
    assert fast == data or (fast is None and s._scan(value) != s._BARE)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.zeros((3, 4), dtype=np.float32),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(1000)[::3],
        np.arange(60).reshape(3, 4, 5).transpose(1, 0, 2),
        np.array(5.0),
        np.zeros((0, 3)),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
        np.array(["ab", "c"]),
        np.arange(4, dtype=">i4"),
        np.array([1 + 2j]),
        np.array([True, False]),
        np.random.default_rng(0).random(100_000),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_of_every_kind_arrive_equal_and_read_only(array):
    got = round_trip(array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()
    if array.dtype.kind not in "M":
        assert not got.flags.writeable
    mine = round_trip(array, copy=True)
    assert mine.flags.writeable
    assert mine.tobytes() == array.tobytes()


def test_a_remembered_pickle_is_of_the_same_dtype_shape_and_order():
    alike = [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12.0).reshape(4, 3),
        np.arange(12.0),
        np.arange(12),
        np.arange(12, dtype=">i8"),
        np.arange(12, dtype=np.dtype("i8", metadata={"of": "mine"})),
        np.arange(12).astype("datetime64[D]"),
        np.arange(12).astype("datetime64[s]"),
    ]
    for _ in range(2):
        for array in alike:
            got = round_trip(array)
            assert (got.dtype, got.shape, got.dtype.metadata) == (array.dtype, array.shape, array.dtype.metadata)
            assert got.flags.c_contiguous == array.flags.c_contiguous
            assert np.array_equal(got, array)
    assert s.serialize(alike[0]).stream is s.serialize(alike[0] + 1).stream
    fixed = np.arange(33)
    fixed.flags.writeable = False
    assert s.serialize(fixed).stream is s.serialize(np.arange(33)).stream
    assert round_trip(np.arange(33), copy=True).flags.writeable
    for length in range(2 * s.ARRAY_STREAMS_MAX):
        s.serialize(np.zeros(length))
    assert len(s._array_streams) <= s.ARRAY_STREAMS_MAX


def test_copy_gives_writable_arrays_also_of_arrays_that_were_read_only():
    first = round_trip({"a": np.arange(5), "nested": [np.ones(3)]})
    again = round_trip(first, copy=True)
    again["a"][0] = 7
    again["nested"][0][0] = 7
    assert first["a"][0] == 0


def test_buffers_are_aligned_and_not_copied():
    arrays = [np.arange(7, dtype=np.uint8), np.arange(1000.0), np.arange(3)]
    data = s.serialize(arrays).to_bytes()
    assert data[0] != 0x80
    whole = np.frombuffer(data, np.uint8)
    start = whole.ctypes.data
    for array in s.deserialize(memoryview(data)):  # as it lies in the arena, which begins at a page
        assert (array.ctypes.data - start) % 64 == 0
        assert np.shares_memory(array, whole)


def test_large_bytes_travel_out_of_band_and_come_back_as_bytes():
    value = os.urandom(s.BUFFER_MIN)
    serialized = s.serialize(value)
    assert serialized.buffers[0].obj is value
    assert s.serialize_fast(value) is None
    assert round_trip(value) == value
    assert type(round_trip(value)) is bytes


def test_object_arrays_and_instances_go_by_cloudpickle():
    class Local:
        def __init__(self, x):
            self.x = x

    assert round_trip(np.array([Local(3)], dtype=object))[0].x == 3
    assert round_trip([Local(4)])[0].x == 4
    assert s.serialize_fast([Local(4)]) is None
    assert round_trip(lambda x: x + 1)(2) == 3


def test_frames_that_are_cut_short_or_garbage_are_refused():
    data = s.serialize(np.arange(100)).to_bytes()
    for end in (0, 1, 10, 20, 60, len(data) - 1):
        with pytest.raises(SerializationError):
            s.deserialize(data[:end])
    with pytest.raises(SerializationError):
        s.deserialize(b"garbage")


def test_a_value_that_cannot_be_unpickled_is_an_error_with_the_cause():
    gone = types.ModuleType("module_that_goes")
    exec("class Thing: pass", gone.__dict__)
    sys.modules["module_that_goes"] = gone
    try:
        data = s.serialize(gone.Thing()).to_bytes()
    finally:
        del sys.modules["module_that_goes"]
    with pytest.raises(SerializationError, match=r"register_pickle_by_value\(module_that_goes\)"):
        s.deserialize(data)


class TakesLong:
    """Is interrupted by a signal while it is pickled, and while it is unpickled."""

    def __init__(self, number: int, unpickling: bool) -> None:
        self.number = number
        self.unpickling = unpickling

    def __reduce__(self):
        if not self.unpickling:
            signal.raise_signal(self.number)
        return signal.raise_signal, (self.number,)


class TooLong(Exception):
    pass


class Limit:
    def __call__(self, number, frame):
        raise TooLong

    def passed(self, number, frame):
        self(number, frame)


@pytest.mark.parametrize("handler", [Limit(), Limit().passed, functools.partial(Limit.passed, Limit()), lambda *_: Limit()(*_)])
@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGUSR1])
def test_an_exception_of_a_signal_handler_is_raised_as_it_is(handler, number):
    before = signal.signal(number, handler)
    try:
        value = TakesLong(number, unpickling=False)
        for act in (s.serialize, lambda value: s.dump_arguments((value,), {}, Owner), lambda value: s.dump_instance(value, Owner, "state")):
            with pytest.raises(TooLong):
                act(value)
        late = s.serialize(TakesLong(number, unpickling=True)).to_bytes()
        for read in (s.deserialize, lambda data: s.deserialize_all([data])):
            with pytest.raises(TooLong):
                read(late)
    finally:
        signal.signal(number, before)


# --- owners ---------------------------------------------------------------------------------------------------------------------


class Owner:
    def __init__(self):
        self.calls = []

    def __call__(self):
        self.calls.append(threading.current_thread().name)


def test_the_owner_is_released_once_when_the_last_view_dies():
    owner = Owner()
    data = memoryview(bytearray(s.serialize({"a": np.arange(100), "b": np.ones(50)}).to_bytes()))
    value = s.deserialize(data, owner)
    part = value["a"][10:20].reshape(2, 5)
    assert not part.flags.writeable
    del value
    assert owner.calls == []
    assert part.sum() == sum(range(10, 20))
    del part
    assert len(owner.calls) == 1
    gc.collect()
    assert len(owner.calls) == 1


def test_the_owner_is_released_at_once_without_views():
    for value, options in [(list(range(5)), {}), (np.arange(10), {"copy": True}), (b"x" * 100_000, {})]:
        owner = Owner()
        got = s.deserialize(memoryview(s.serialize(value).to_bytes()), owner, **options)
        assert len(owner.calls) == 1, value
        assert len(got) == len(value)


def test_the_owner_is_released_when_unpickling_fails():
    for value in (np.arange(10), 5):
        owner = Owner()
        data = s.serialize(value).to_bytes()
        with pytest.raises(SerializationError):
            s.deserialize(memoryview(data[:-1]), owner)
        gc.collect()
        assert len(owner.calls) == 1


def test_the_owner_may_be_released_in_another_thread_and_may_raise():
    owner = Owner()
    box = [s.deserialize(memoryview(s.serialize(np.arange(10)).to_bytes()), owner)]
    thread = threading.Thread(target=box.clear, name="another")
    thread.start()
    thread.join()
    assert owner.calls == ["another"]

    def bad():
        raise RuntimeError

    value = s.deserialize(memoryview(s.serialize(np.arange(10)).to_bytes()), bad)
    del value


def test_views_alive_at_interpreter_exit_are_silent():
    program = (
        "import numpy as np\nfrom zfabric.adapters import serialization as s\n"
        "kept = s.deserialize(memoryview(s.serialize(np.arange(10)).to_bytes()), lambda: print('released'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    assert ran.stderr == ""


# --- refs ------------------------------------------------------------------------------------------------------------------------


class Ref:
    """Stands for ObjectRef: pickles as its id and reports itself."""

    def __init__(self, number):
        self.number = number

    def binary(self):
        return bytes([self.number]) * 20

    travel = binary

    def __reduce__(self):
        self.noted = s.note_reference(self.binary())
        return Ref, (self.number,)


def test_refs_inside_values_are_collected_once_each_in_order():
    one, two = Ref(1), Ref(2)
    serialized = s.serialize({"a": [two, one], "b": (two, np.arange(3))})
    assert serialized.contained == (two.binary(), one.binary())
    pickle.dumps(one)
    assert one.noted is False


def test_a_serialize_within_a_serialize_collects_for_itself():
    class Outer:
        def __reduce__(self):
            self.inner = s.serialize([Ref(9)]).contained
            return list, ([Ref(1)],)

    outer = Outer()
    assert s.serialize([outer, Ref(2)]).contained == (Ref(1).binary(), Ref(2).binary())
    assert outer.inner == (Ref(9).binary(),)


@pytest.mark.parametrize("count", [1, 2, 3, 100])
@pytest.mark.parametrize("body", [b"small", np.arange(5000)], ids=["pickle", "buffers"])
def test_the_ids_of_refs_inside_are_in_front_of_a_value(body, count):
    """So a daemon can read them. What follows is aligned as it would be without them."""
    refs = [Ref(number) for number in range(1, count + 1)]
    serialized = s.serialize([body, refs])
    data = serialized.to_bytes()
    assert len(data) == serialized.size
    room = bytearray(serialized.size)
    serialized.write_into(memoryview(room))
    assert room == data
    reads = []
    assert read_refs(lambda length: reads.append(length) or data[:length], len(data)) == serialized.contained
    assert len(reads) == (1 if count <= 2 else 2)
    for source in (data, memoryview(data), s._copied(data)):
        loaded, found = s.deserialize(source)
        assert np.array_equal(loaded, body)
        assert [each.number for each in found] == [each.number for each in refs]
        assert not isinstance(loaded, np.ndarray) or loaded.ctypes.data % 64 == 0 or type(source) is memoryview
    assert s.deserialize_all([data, s.serialize(1).to_bytes()])[1] == 1
    with pytest.raises(s.SerializationError):
        s.deserialize(data[:4])


def test_what_only_looks_like_a_value_with_refs_inside_has_none():
    assert read_refs(lambda length: (b"\xc1" + b"\xff" * 200)[:length], 200) == ()
    assert read_refs(lambda length: b"\xc1"[:length], 1) == ()
    assert read_refs(lambda length: b""[:length], 0) == ()
    assert read_refs(lambda length: s.serialize(b"x" * 100_000).to_bytes()[:length], 100_000) == ()


# --- arguments -----------------------------------------------------------------------------------------------------------------


def test_no_arguments_are_no_bytes():
    assert s.dump_arguments((), {}, Ref) == (b"", (), ())
    assert s.load_arguments(b"") == ((), {})


@settings(max_examples=40)
@given(st.lists(plain, max_size=4).map(tuple), st.dictionaries(st.text(), plain, max_size=3))
def test_arguments_round_trip(args, kwargs):
    data, dependencies, contained = s.dump_arguments(args, kwargs, Ref)
    assert (dependencies, contained) == ((), ())
    assert s.load_arguments(data) == (args, kwargs)


def test_refs_among_arguments_become_dependencies_and_deeper_ones_stay():
    a, b, c = Ref(1), Ref(2), Ref(3)
    data, dependencies, contained = s.dump_arguments((a, 5, b, [c]), {"x": a, "y": None}, Ref)
    assert dependencies == (a.binary(), b.binary())
    assert contained == (c.binary(),)
    args, kwargs = s.load_arguments(data, ["A", "B"])
    assert args[:3] == ("A", 5, "B")
    assert args[3][0].number == 3
    assert kwargs == {"x": "A", "y": None}


def test_arrays_among_arguments():
    data, _, _ = s.dump_arguments((np.arange(1000), 1), {}, Ref)
    (array, one), _ = s.load_arguments(data)
    assert array.sum() == 499_500
    assert one == 1


@pytest.mark.parametrize("value", [b"x" * 2000, "x" * 2000, [1.0] * 1000, np.zeros(1000), {"a": ["x" * 2000]}])
def test_arguments_over_the_limit_are_refused_before_they_are_copied(value):
    with pytest.raises(s.ArgumentsTooLarge):
        s.dump_arguments((value,), {}, Ref, 1000)
    assert s.dump_arguments((value,), {}, Ref, 100_000)[0]


# --- what cannot be pickled ------------------------------------------------------------------------------------------------------


class Config:
    def __init__(self, **state):
        self.__dict__.update(state)


class Slotted:
    __slots__ = ("lock",)


def test_errors_name_the_path_to_the_offending_part():
    lock = threading.Lock()
    slotted = Slotted()
    slotted.lock = lock
    holder = Config(config={"x": 1, "lock": lock})

    def closure():
        return lock

    cases = {
        "args[1].config['lock'] -> _thread.lock": (1, holder),
        "args[0][2][0] -> _thread.lock": ([1, 2, (lock,)],),
        "args[0].<closure lock> -> _thread.lock": (closure,),
        "args[0].lock -> _thread.lock": (slotted,),
        "args[0] -> _thread.lock": (lock,),
    }
    for path, args in cases.items():
        with pytest.raises(SerializationError) as caught:
            s.dump_arguments(args, {}, Ref)
        assert caught.value.facts["path"] == path
        assert path in str(caught.value)
    with pytest.raises(SerializationError, match=r"option\.config\['lock'\]"):
        s.dump_arguments((), {"option": holder}, Ref)


class Exits:
    def __init__(self, at):
        self.at = at

    def __reduce__(self):
        return sys.exit("left") if self.at == "pickle" else (sys.exit, (self.at,))


def test_a_value_that_exits_ends_no_process():
    with pytest.raises(SerializationError, match=r"cannot pickle what f returned\[1\] -> .*Exits \(SystemExit: left\)"):
        s.serialize([1, Exits("pickle")], "what f returned")
    data = s.serialize(Exits("unpickle")).to_bytes()
    with pytest.raises(SerializationError, match="cannot unpickle a value: SystemExit: unpickle"):
        s.deserialize(data)
    with pytest.raises(SerializationError, match="cannot unpickle a value: SystemExit: unpickle"):
        s.deserialize_all([data])


def refuse():
    raise multiprocessing.AuthenticationError("digest sent was rejected")


class OfAManager:
    def __reduce__(self):
        return refuse, ()


def test_errors_advise_on_what_only_children_of_a_program_share():
    with pytest.raises(SerializationError, match=r"_semlock -> .*through inheritance\); tasks share zfabric\.util\.queue\.Queue, an actor"):
        s.serialize(multiprocessing.Lock())
    with pytest.raises(SerializationError, match=r"rejected; a multiprocessing\.Manager admits only children .* let an actor have"):
        s.deserialize(s.serialize(OfAManager()).to_bytes())


def test_the_search_for_the_path_is_bounded():
    cyclic = [threading.Lock()]
    cyclic.append(cyclic)
    assert blame(cyclic, "value") == "value[0] -> _thread.lock"
    wide = [object() for _ in range(5000)] + [threading.Lock()]
    assert blame(wide, "value") == "value -> list"
    deep = threading.Lock()
    for _ in range(100):
        deep = [deep]
    assert blame(deep, "value").endswith("-> list")


# --- functions ----------------------------------------------------------------------------------------------------------------------


def test_functions_travel_with_their_retry_exceptions():
    function, retryable = s.load_function(s.dump_function(lambda x: x + 1)[0])
    assert function(1) == 2
    assert not retryable(ValueError())
    _, retryable = s.load_function(s.dump_function(len, True)[0])
    assert retryable(ValueError())
    assert not retryable(KeyboardInterrupt())
    _, retryable = s.load_function(s.dump_function(len, (KeyError, OSError))[0])
    assert retryable(KeyError())
    assert retryable(FileNotFoundError())
    assert not retryable(ValueError())


def test_a_generator_runs_to_its_end():
    def three():
        yield from (1, 2, 3)

    assert returning_all(s.load_function(s.dump_function(three)[0])[0])() == (1, 2, 3)


def test_identity_depends_on_payload_and_options():
    ids = {s.function_identity(p, o) for p in (b"a", b"b") for o in ((), (("name", "x"),))}
    assert len(ids) == 4
    assert all(len(one) == 16 for one in ids)


def test_functions_keep_the_name_of_their_file():
    """Tracebacks show their lines, and a debugger finds its breakpoints; of cloudpickle's releases, 3.1.3 leaves it out."""

    def outer():
        return lambda: None

    loaded = s.load_function(s.dump_function(outer)[0])[0]
    assert {loaded.__code__.co_filename, loaded().__code__.co_filename} == {outer.__code__.co_filename}


def test_modules_registered_by_value_are_sent():
    module = types.ModuleType("by_value_module")
    exec("def f(x):\n    return g(x) + 1\ndef g(x):\n    return 10 * x\n", module.__dict__)
    sys.modules["by_value_module"] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        payload, _ = s.dump_function(module.f)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["by_value_module"]
    assert s.load_function(payload)[0](2) == 21


# --- errors ---------------------------------------------------------------------------------------------------------------------------


FACTS = {"function": "f", "node": "abcd", "pid": 7, "attempt": 1}


def sent(error, facts=FACTS):
    """``error`` raised, packed and loaded."""
    try:
        raise error
    except BaseException as caught:  # any class is sent
        return task_errors.load_error(task_errors.pack_error(caught, facts)[0])


class Picky(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code, self.detail = code, detail


class Unpicklable(ValueError):
    def __init__(self, text):
        super().__init__(text, threading.Lock())
        self.lock, self.number = threading.Lock(), 5


class Refuses(Exception):
    def __reduce__(self):
        raise RuntimeError("no")


class Final(Exception):
    def __init_subclass__(cls):
        raise TypeError("final")


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Stop(BaseException):
    pass


class TooLarge(MemoryError):
    """As numpy's: made of what its base does not take."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape


class ReadOnly(Exception):
    @property
    def args(self):
        return ("always this",)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class EndsUnpickling(Exception):
    """Its unpickling raises what ends a process, but only in the process that asks for the value."""

    here = True

    def __reduce__(self):
        return _ends, (os.getpid() if EndsUnpickling.here else 0,)


def _ends(pid):
    if pid != os.getpid():
        raise SystemExit("unpickled")
    return EndsUnpickling()


def test_an_error_is_also_an_instance_of_the_users_class():
    error = sent(ZeroDivisionError("division by zero"))
    assert isinstance(error, TaskError)
    assert isinstance(error, ZeroDivisionError)
    assert error.args == ("division by zero",)
    assert type(error.cause) is ZeroDivisionError
    assert error.facts == FACTS
    assert str(error) == "division by zero"
    (note,) = error.__notes__
    assert "ZeroDivisionError: division by zero" in note
    assert "raise error" in note
    assert "node abcd" in note
    assert "pid 7" in note
    assert "attempt 2" in note, "people count from 1"
    assert "in sent" in error.traceback_text
    shown = "".join(traceback.format_exception(error))
    assert "zfabric.exceptions.TaskError(ZeroDivisionError): division by zero\nraised in " in shown
    assert type(sent(ZeroDivisionError())) is type(error)
    assert type(error).__qualname__ == "TaskError(ZeroDivisionError)"


def test_the_state_of_the_users_exception_arrives():
    error = sent(FileNotFoundError(2, "no such file", "/x"))
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (2, "/x")
    picky = sent(Picky(4, detail={"a": 1}))
    assert isinstance(picky, Picky)
    assert (picky.code, picky.detail) == (4, {"a": 1})
    unicode_error = sent(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"))
    assert isinstance(unicode_error, UnicodeDecodeError)
    assert unicode_error.reason == "bad"
    assert sent(KeyError("k")).args == ("k",)
    for exhausted in (sent(MemoryError()), sent(MemoryError("no room")), pickle.loads(pickle.dumps(sent(MemoryError("no room"))))):
        assert isinstance(exhausted, MemoryError)
        assert isinstance(exhausted, TaskError)
        assert str(exhausted) in ("", "no room")
    assert isinstance(sent(TooLarge((10**15,))), MemoryError)


def test_unpicklable_exceptions_arrive():
    error = sent(Unpicklable("text"))
    assert isinstance(error, Unpicklable)
    assert error.number == 5
    assert "lock" in error.args[1]
    assert isinstance(sent(Refuses("r")), Refuses)

    class Local(Exception):
        lock = threading.Lock()

    local = sent(Local("local text"))
    assert type(local) is not Local
    assert isinstance(local, TaskError)
    assert local.cause is None
    assert str(local) == "local text"
    assert "Local: local text" in local.__notes__[0]
    assert isinstance(sent(BadText()), BadText)


def test_classes_that_cannot_be_combined_give_a_plain_task_error():
    for error in (Final("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(5), GeneratorExit(), asyncio.CancelledError()):
        got = sent(error)
        assert isinstance(got, TaskError)
        assert not isinstance(got, type(error))
        assert type(got.cause) is type(error)
        assert type(error).__name__ in got.__notes__[0]


def test_a_plain_task_error_names_the_class_that_was_raised():
    assert str(sent(SystemExit(2))) == "SystemExit: 2"
    assert repr(sent(KeyboardInterrupt())) == "TaskError('KeyboardInterrupt')"
    assert str(sent(sent(StopIteration(5)))) == "StopIteration: 5"
    assert str(sent(TaskError("mine"))) == "mine"


def test_functions_with_a_cache_travel_without_its_content():
    @functools.lru_cache(maxsize=7, typed=True)
    def squared(x):
        return x * x

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    squared.unit = "m2"
    squared(3)
    loaded = round_trip(squared)
    assert loaded(3) == 9
    assert loaded.cache_parameters() == {"maxsize": 7, "typed": True}
    assert loaded.cache_info().misses == 1
    assert (loaded.unit, loaded.__name__, loaded.__wrapped__.__name__) == ("m2", "squared", "squared")
    again = round_trip(fibonacci)
    assert again(90) == 2880067194370816120
    assert again.__wrapped__.__closure__[0].cell_contents is again
    assert round_trip(fnmatch._compile_pattern) is fnmatch._compile_pattern


class WithCache:
    @functools.cache  # noqa: B019 - that it keeps instances is not what this looks at
    def method(self, x):
        return x + 1


def test_classes_that_travel_by_value_include_their_cached_methods():
    kind = type("Made", (), {"__module__": "__main__", "method": functools.cache(WithCache.method.__wrapped__)})
    assert round_trip(kind)().method(1) == 2
    assert round_trip(WithCache) is WithCache


def test_what_keeps_a_cached_function_from_being_pickled_is_named():
    lock = threading.Lock()
    path = r"value\.__wrapped__\.<closure lock> -> _thread\.lock"
    with pytest.raises(SerializationError, match=path):
        s.serialize(functools.cache(lambda: lock))


def test_errors_of_unusual_classes_are_caught_as_their_class():
    with pytest.raises(Stop, match=r"^now"):
        raise sent(Stop("now"))
    read_only = sent(ReadOnly("said"))
    assert isinstance(read_only, ReadOnly)
    assert read_only.args == ("always this",)
    frozen = sent(Frozen(3))
    assert isinstance(frozen, Frozen)
    assert frozen.code == 3
    for error in (sent(Stop("x")), read_only, frozen):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert isinstance(error, TaskError)


def test_notes_of_the_program_come_before_ours():
    error = ValueError("bad")
    error.add_note("the third row")
    first = sent(error)
    assert first.__notes__[0] == "the third row"
    assert first.__notes__[1].startswith("raised in ")
    assert len(first.__notes__) == 2
    assert "the third row" not in first.__notes__[1]
    second = sent(first)
    assert second.__notes__[0] == "the third row"
    assert len(second.__notes__) == 2
    assert first.__notes__[1].splitlines()[-1] in second.__notes__[1]
    assert len(first.__notes__) == 2


def test_an_exception_that_would_end_whoever_unpickles_it_arrives_as_a_task_error():
    EndsUnpickling.here = False
    try:
        in_the_worker = sent(EndsUnpickling())
    finally:
        EndsUnpickling.here = True
    assert isinstance(in_the_worker, EndsUnpickling)  # Made of its parts: the worker tries first.
    data = task_errors.pack_error(EndsUnpickling(), FACTS)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if type(task_errors.load_error(data)).__qualname__ == "TaskError" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_exception_groups_arrive():
    error = sent(ExceptionGroup("several", [ValueError(1), KeyError(2)]))
    assert isinstance(error, TaskError)
    assert [type(one) for one in error.cause.exceptions] == [ValueError, KeyError]


def test_an_error_pickles_again():
    error = sent(Picky(4, detail=1))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Picky)
    assert isinstance(again, TaskError)
    assert str(again) == str(error)
    assert again.facts == error.facts
    assert again.code == 4


def test_nested_errors_retain_class_and_traceback():
    inner = sent(ValueError("the root"), {"function": "inner"})
    outer = sent(inner, {"function": "outer"})
    third = sent(outer, {"function": "third"})
    assert isinstance(third, ValueError)
    assert third.args == ("the root",)
    assert third.cause.facts == {"function": "outer"}
    assert third.cause.cause.facts == {"function": "inner"}
    assert type(third.cause.cause.cause) is ValueError
    assert type(third).__qualname__ == "TaskError(ValueError)"
    assert str(third) == "the root"
    (note,) = third.__notes__
    assert "raised in function inner" in note
    assert len(note) < 8 * len(inner.__notes__[0])


def test_fabric_errors_raised_in_a_task_keep_their_class():
    error = sent(GetTimeoutError("late"))
    assert isinstance(error, GetTimeoutError)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, TaskError)
    assert error.facts == FACTS
    assert isinstance(sent(TaskError("made by hand")), TaskError)


def test_long_tracebacks_are_cut():
    error = sent(ValueError("x" * 1_000_000))
    assert len(error.traceback_text) < 100_000
    assert "characters left out" in error.traceback_text


def test_a_cause_whose_class_cannot_be_imported_leaves_its_texts():
    module = types.ModuleType("errors_elsewhere")
    exec("class Odd(Exception): pass", module.__dict__)
    sys.modules["errors_elsewhere"] = module
    try:
        data = task_errors.pack_error(module.Odd("strange"), FACTS)[0]
    finally:
        del sys.modules["errors_elsewhere"]
    error = task_errors.load_error(data)
    assert error.cause is None
    assert str(error) == "strange"
    assert "errors_elsewhere.Odd: strange" in error.__notes__[0]


def test_failures_become_exceptions():
    error = task_errors.load_failure(pack_failure("WorkerCrashedError", "it died", (("signal", 9), ("text", "clash"))))
    assert type(error) is WorkerCrashedError
    assert str(error) == "it died"
    assert error.facts == {"signal": 9, "text": "clash"}
    for kind in ("Unheard", "Any", "annotations", "ValueError"):
        assert type(task_errors.load_failure(pack_failure(kind, "x"))) is FabricError


def test_classes_of_main_keep_their_identity_through_a_worker():
    """A class defined in ``__main__`` comes back from another process as the very class."""
    program = """
import subprocess, sys, base64
from zfabric.adapters import serialization as s
from zfabric.adapters import task_errors
class Mine(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b
def f():
    raise Mine(1, 2)
worker = '''
import sys, base64
from zfabric.adapters import serialization as s
from zfabric.adapters import task_errors
function, _ = s.load_function(base64.b64decode(sys.stdin.read()))
try: function()
except Exception as error: print(base64.b64encode(task_errors.pack_error(error, {})[0]).decode())
'''
ran = subprocess.run([sys.executable, "-c", worker], input=base64.b64encode(s.dump_function(f)[0]).decode(), capture_output=True, text=True)
assert not ran.stderr, ran.stderr
error = task_errors.load_error(base64.b64decode(ran.stdout))
assert isinstance(error, Mine) and error.b == 2, error
print("fine")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "fine\n", ran.stderr


# --- errors that are too large to travel whole ------------------------------------------------------------------------------------


class Heavy(Exception):
    def __init__(self, text, code):
        super().__init__(text)
        self.code = code
        self.array = np.zeros(400_000)
        self.numbers = list(range(1_000_000))


def with_a_long_note():
    error = ValueError("short")
    error.add_note("n" * 3_000_000)
    return error


LARGE_ERRORS = [
    lambda: ValueError("x" * 3_000_000),
    lambda: Heavy("what the user says", 7),
    lambda: KeyError({number: number for number in range(300_000)}),
    lambda: ValueError(*(bytes([number]) * 60_000 for number in range(100))),
    lambda: UnicodeDecodeError("utf-8", b"x" * 3_000_000, 0, 1, "why"),
    lambda: OSError(2, "x" * 3_000_000),
    lambda: ExceptionGroup("several", [ValueError("x" * 3_000_000), Heavy("inside", 8)]),
    with_a_long_note,
]


@pytest.mark.parametrize("make", LARGE_ERRORS)
def test_an_error_that_is_too_large_is_cut_down_and_keeps_its_class(make):
    made = make()
    error = raised(made)
    assert len(vars(error)["_payload"]) <= task_errors.ERROR_BYTES_MAX + 100_000
    assert isinstance(error, type(made))
    assert isinstance(error, TaskError)
    assert len(str(error)) < 40_000
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    if isinstance(made, Heavy):
        assert str(error) == "what the user says"
        assert error.code == 7
        assert "0." in error.array
        assert "[0, 1, 2" in error.numbers
    if isinstance(made, ExceptionGroup):
        assert [type(each) for each in error.cause.exceptions] == [ValueError, Heavy]


def raised(error):
    try:
        raise error
    except BaseException as caught:  # any class is sent
        return task_errors.load_error(task_errors.pack_error(caught, {"pid": 1})[0])


def test_errors_inside_each_other_do_not_grow_without_end():
    error = ValueError("the first " + "x" * 30_000)
    for _ in range(60):
        error = raised(error)
    assert len(vars(error)["_payload"]) <= task_errors.ERROR_BYTES_MAX
    assert isinstance(error, ValueError)
    assert str(error).startswith("the first")


@pytest.mark.parametrize("size", [1, 100, 8000, 60_000])
def test_small_arrays_are_aligned_like_large_ones(size: int) -> None:
    packed = [s.serialize(np.arange(size, dtype=np.uint8)).to_bytes() for _ in range(8)]
    for data in packed:
        array = s.deserialize(data)
        assert array.__array_interface__["data"][0] % 64 == 0
        assert not array.flags.writeable
        assert (array == np.arange(size, dtype=np.uint8)).all()
