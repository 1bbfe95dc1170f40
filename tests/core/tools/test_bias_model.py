"""The bias of a lock in every interleaving of its steps, on processors that delay their stores.

The programs below are those of `bias.pxd` and `lock.pxd`, step by step. Each thread has a buffer of stores that others
do not see yet, as x86 has; a step that reads, changes and writes memory at once empties it first. Further tests check
the test itself: each omits one step that the proof relies on.

A fork ends the other threads that have begun. Those that have not are the child's from then on.
"""

import pytest

COUNTING, FAVORED, REVOKED = "counting", "favored", "revoked"
HELD, LENT = 1, 2
MEMORY = {"word": 0, "favored": COUNTING, "inside": 0}
VARIABLES = tuple(MEMORY)
ENDED = (None, None, ())
FORK = ("fork, forget the others in the child",)


def by_word(done, *, retract="atomic", while_inside=()):
    """Acquire the word if the favored thread is not inside, and release it; otherwise give up."""
    return [
        ("load", "inside"),
        ("if", 0, f"{done} let in"),
        *([("add", "word", -HELD)] if retract == "atomic" else [("load", "word"), ("store less", "word", HELD)]),
        ("jump", done),
        ("label", f"{done} let in"),
        ("enter",),
        *while_inside,
        ("leave",),
        ("store", "word less HELD"),
        ("label", done),
    ]


def other_thread(name, rounds, *, barrier=True, checks_again=True, retract="atomic", fork=None):
    steps = []
    for number in range(rounds):
        done = f"{name} {number}"
        steps += [
            ("acquire", done),
            ("load", "favored"),
            ("if", COUNTING, f"{done} let in"),
            ("if", REVOKED, f"{done} check" if checks_again else f"{done} let in"),
            ("store", "favored", REVOKED),
            *([("barrier",)] if barrier else []),
            ("label", f"{done} check"),
            *by_word(done, retract=retract, while_inside=[fork] if fork and number == 0 else []),
        ]
    return steps


def favored_thread(rounds, *, looks_again=True, lends=False, fork=None):
    steps = []
    for number in range(rounds):
        done = f"favored {number}"
        while_inside = [fork] if fork and number == 1 else []
        leaving = [("enter",), *while_inside, ("leave",), ("store", "inside", 0), ("jump", done)]
        if lends:
            leaving = [
                *[("enter",), ("leave",), ("add", "word", LENT), ("store", "inside", 0)],
                *[("label", f"{done} back"), ("load", "favored"), ("unless", FAVORED, f"{done} back by word")],
                *[("store", "inside", 1), ("load", "favored"), ("unless", FAVORED, f"{done} back out")],
                *[("add", "word", -LENT), ("enter",), ("leave",), ("store", "inside", 0), ("jump", done)],
                *[("label", f"{done} back out"), ("store", "inside", 0)],
                *[("label", f"{done} back by word"), ("reacquire", f"{done} back"), ("jump", f"{done} let in")],
            ]
        steps += [
            ("load", "favored"),
            ("unless", FAVORED, f"{done} word"),
            ("store", "inside", 1),
            *([("load", "favored"), ("unless", FAVORED, f"{done} out")] if looks_again else []),
            ("label", f"{done} inside"),
            *leaving,
            ("label", f"{done} out"),
            ("store", "inside", 0),
            ("label", f"{done} word"),
            ("acquire", done),
            ("load", "favored"),
            ("unless", COUNTING, f"{done} check"),
            ("store", "inside", 1),
            ("store", "favored", FAVORED),
            ("add", "word", -HELD),
            ("jump", f"{done} inside"),
            ("label", f"{done} check"),
            *by_word(done, while_inside=while_inside),
        ]
    return steps


def assembled(steps):
    """The steps without labels, and where these point."""
    code, places = [], {}
    for step in steps:
        if step[0] == "label":
            places[step[1]] = len(code)
        else:
            code.append(step)
    return code, places


def wrong_outcome(*programs):
    """Run the programs in every interleaving; return the error of one of them, or None."""
    threads = [assembled(program) for program in programs]
    start = (tuple(MEMORY.values()), tuple((0, None, ()) for _ in threads), ())
    known, left = {start}, [start]
    while left:
        memory, states, inside = left.pop()
        if len(inside) > 1:
            return "two threads are inside"
        ended = all(
            place in (None, len(code)) and not buffer
            for (place, _, buffer), (code, _) in zip(states, threads, strict=True)
        )
        if ended and (memory[0] != 0 or memory[2] != 0):
            return "the lock is not free in the end"
        for number in range(len(threads)):
            for after in steps_of(number, threads[number], memory, states, inside):
                if after not in known:
                    known.add(after)
                    left.append(after)
    return None


def steps_of(number, thread, memory, states, inside):
    """The states after the next step of a thread, and after its oldest delayed store has arrived."""
    (code, places), (place, seen, buffer) = thread, states[number]

    def moved(place, seen=seen, buffer=buffer, memory=memory, states=states, inside=inside):
        return memory, (*states[:number], (place, seen, buffer), *states[number + 1 :]), inside

    if buffer:
        yield moved(place, buffer=buffer[1:], memory=written(memory, *buffer[0]))
    if place in (None, len(code)):
        return
    kind, *given = code[place]
    if kind == "load":
        own = [value for variable, value in buffer if variable == given[0]]
        yield moved(place + 1, seen=own[-1] if own else memory[VARIABLES.index(given[0])])
    elif kind == "store" and given[0] == "word less HELD":  # the holder's: a plain load and store
        yield moved(place + 1, buffer=(*buffer, ("word", memory[0] - HELD)))
    elif kind == "store":
        yield moved(place + 1, buffer=(*buffer, tuple(given)))
    elif kind == "store less":
        yield moved(place + 1, buffer=(*buffer, (given[0], seen - given[1])))
    elif kind == "unless held":
        yield moved(place + 1 if seen & HELD else places[given[0]])
    elif kind in ("if", "unless"):
        yield moved(places[given[1]] if (seen == given[0]) == (kind == "if") else place + 1)
    elif kind == "jump":
        yield moved(places[given[0]])
    elif kind == "enter":
        yield moved(place + 1, inside=(*inside, number))
    elif kind == "leave":
        yield moved(place + 1, inside=tuple(other for other in inside if other != number))
    elif kind == "barrier":
        for _, _, delayed in states:
            for store in delayed:
                memory = written(memory, *store)
        states = tuple((place, seen, ()) for place, seen, _ in states)
        yield moved(place + 1, buffer=(), memory=memory, states=states)
    elif not buffer:
        word = memory[0]
        if kind == "add":
            yield moved(place + 1, memory=written(memory, given[0], word + given[1]))
        elif kind.startswith("fork"):
            if kind == FORK[0]:
                holds_by_bias = number == 0 and memory[2] == 1
                memory = written(memory, "word", word & ~HELD) if holds_by_bias else written(memory, "inside", 0)
            yield moved(place + 1, memory=memory, states=tuple(state if state[0] == 0 else ENDED for state in states))
        elif kind == "acquire":
            if word & HELD:
                yield moved(places[given[0]])
            else:
                yield moved(place + 1, memory=written(memory, "word", word + HELD))
        elif kind == "reacquire":  # or try again
            if word & HELD or memory[2]:
                yield moved(places[given[0]])
            else:
                yield moved(place + 1, memory=written(memory, "word", word - LENT + HELD))


def written(memory, variable, value):
    place = VARIABLES.index(variable)
    return (*memory[:place], value, *memory[place + 1 :])


@pytest.mark.parametrize("lends", [False, True], ids=["", "with unlocked sections"])
def test_no_interleaving_lets_two_threads_in_or_loses_one_that_will_be_back(lends):
    assert wrong_outcome(favored_thread(3, lends=lends), other_thread("one", 2), other_thread("two", 1)) is None


@pytest.mark.parametrize("lends", [False, True], ids=["", "with unlocked sections"])
def test_in_the_child_of_the_favored_thread_no_two_threads_get_in_and_the_lock_is_free_in_the_end(lends):
    others = other_thread("one", 1), other_thread("two", 1)
    assert wrong_outcome(favored_thread(3, lends=lends, fork=FORK), *others) is None


def test_in_the_child_of_another_thread_no_two_threads_get_in_and_the_lock_is_free_in_the_end():
    others = other_thread("one", 2, fork=FORK), other_thread("two", 1)
    assert wrong_outcome(favored_thread(3), *others) is None


def test_a_child_that_does_not_forget_other_threads_would_find_the_lock_held():
    remembering = ("fork",)
    outcomes = [
        wrong_outcome(favored_thread(3, fork=remembering), other_thread("one", 1)),
        wrong_outcome(favored_thread(3), other_thread("one", 1, fork=remembering)),
    ]
    assert outcomes == ["the lock is not free in the end"] * 2


@pytest.mark.parametrize(
    ("favored", "other"),
    [
        ({}, {"barrier": False}),
        ({}, {"checks_again": False}),
        ({"looks_again": False}, {}),
    ],
    ids=["no barrier", "a later thread does not look whether the favored one is inside", "no second look"],
)
def test_without_one_of_the_steps_two_threads_get_in(favored, other):
    programs = favored_thread(3, **favored), other_thread("one", 2, **other), other_thread("two", 1, **other)
    assert wrong_outcome(*programs) == "two threads are inside"


def test_giving_up_by_a_plain_store_would_lose_a_thread_that_will_be_back():
    programs = favored_thread(3, lends=True), other_thread("one", 2, retract="plain")
    assert wrong_outcome(*programs) is not None
