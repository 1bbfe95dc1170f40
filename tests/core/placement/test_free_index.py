"""The ordered free blocks of one free list, against a sorted list."""

import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20
BLOCK = 512

# Sizes repeat often, so that bins hold trees; both sides of the largest bin; ends of words and of the bitmap.
SIZES = st.sampled_from(
    [1, 2, 63, 64, 65, 128, 129, 4032, 4033, 4095, 4096, 4097, 5000, 20 * MIB // BLOCK]
) | st.integers(1, 4200)
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1 << 30)), max_size=120)


@pytest.fixture(scope="session")
def module(extension):
    return extension("free_index")


class Model:
    """(size, address) of every block, in order."""

    def __init__(self):
        self.blocks = []

    def best_fit(self, size):
        return self.at(bisect.bisect_left(self.blocks, (size, 0)))

    def below(self, size):
        return self.at(bisect.bisect_left(self.blocks, (size, 0)) - 1)

    def at(self, place):
        return self.blocks[place] if 0 <= place < len(self.blocks) else None


def check(index, model, sizes):
    """Every query gives the model's answer, and the bitmap shows the bins that are not empty."""
    assert index.first() == model.at(0)
    assert index.largest() == model.at(len(model.blocks) - 1)
    for size in sizes:
        assert index.best_fit(size) == model.best_fit(size)
        assert index.below(size) == model.below(size)
    for place, (_, address) in enumerate(model.blocks):
        assert index.next(address) == model.at(place + 1)
        assert index.prev(address) == model.at(place - 1)


def run(index, model, steps, binned_up_to):
    used = 0
    for inserts, size, choice in steps:
        if inserts or not model.blocks:
            # Addresses come in random order, and no two are equal.
            used += 1
            address = (choice * 1_000_003 + used) * BLOCK
            index.insert(size * BLOCK, address)
            bisect.insort(model.blocks, (size * BLOCK, address))
        else:
            index.remove(model.blocks.pop(choice % len(model.blocks))[1])
        check(index, model, {size * BLOCK, (size + 1) * BLOCK, BLOCK, 2 * MIB, 2 * MIB + BLOCK})
        bins = sorted({size // BLOCK - 1 for size, _ in model.blocks if size <= binned_up_to})
        assert index.bits() == (bins, sorted({place // 64 for place in bins}))


@settings(deadline=None)
@given(steps=STEPS)
def test_a_free_list_with_bins_finds_what_a_sorted_list_finds(module, steps):
    assert module.LARGEST_BIN == 2 * MIB
    run(module.Index(with_bins=True), Model(), steps, module.LARGEST_BIN)


@settings(deadline=None)
@given(steps=STEPS)
def test_a_free_list_without_bins_finds_what_a_sorted_list_finds(module, steps):
    run(module.Index(with_bins=False), Model(), steps, 0)


@settings(deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=40), order=st.randoms(use_true_random=False))
def test_taking_the_best_fit_again_and_again_empties_a_free_list_in_order(module, sizes, order):
    index = module.Index(with_bins=True)
    blocks = [(size * BLOCK, (place + 1) * MIB) for place, size in enumerate(sizes)]
    for size, address in order.sample(blocks, len(blocks)):
        index.insert(size, address)
    taken = []
    while (found := index.best_fit(BLOCK)) is not None:
        index.remove(found[1])
        taken.append(found)
    assert taken == sorted(blocks)
    assert index.bits() == ([], [])


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(1, 60)), max_size=120))
def test_unmapped_blocks_are_in_order_of_address_whatever_their_size(module, steps):
    tree, model = module.AddressTree(), set()
    for inserts, size, number in steps:
        address = number * 20 * MIB
        if inserts and address not in model:
            tree.insert(size * MIB, address)
            model.add(address)
        elif address in model:
            tree.remove(address)
            model.remove(address)
        assert tree.forwards() == sorted(model)
        assert tree.backwards() == sorted(model, reverse=True)


@pytest.mark.parametrize("spacing", [512, 2 * MIB, 20 * MIB])
def test_a_tree_of_equally_spaced_addresses_is_not_deep(module, spacing):
    tree = module.AddressTree()
    for number in range(1, 20_001):
        tree.insert(MIB, number * spacing)
    assert tree.depth() < 5 * 15  # about 2 log2(n) is expected, and never a list
