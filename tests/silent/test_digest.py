"""Digests tell apart all that differs in a bit, and need no more than the bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from allranks.rank import digest  # noqa: E402

pytestmark = pytest.mark.torch
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]


def of(*tensors: torch.Tensor | None) -> list[int | None]:
    return digest.Digester(torch).digests(list(tensors))


def sample(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    return (values * 50).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 3, 64, digest.CHUNK + 5, 3 * digest.CHUNK])
def test_equal_bits_have_equal_digests_and_one_flipped_bit_another(dtype: torch.dtype, count: int) -> None:
    one = sample(count, dtype)
    other = one.clone()
    assert of(one) == of(other)
    raw = other.view(torch.uint8)
    raw[-1] ^= 1
    assert of(one) != of(other)


@pytest.mark.parametrize("places", [(0, 1), (5, digest.CHUNK + 5), (7, digest.CHUNK - 1)])
def test_elements_that_change_places_and_signs_that_flip_in_pairs_are_seen(places: tuple[int, int]) -> None:
    one = sample(2 * digest.CHUNK)
    a, b = places
    swapped, flipped = one.clone(), one.clone()
    swapped[a], swapped[b] = one[b], one[a]
    flipped[[a, b]] *= -1
    assert len({of(one)[0], of(swapped)[0], of(flipped)[0]}) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bit", [7, 6, 3, 0])
def test_a_bit_that_flips_in_many_places_is_seen(dtype: torch.dtype, bit: int) -> None:
    one = sample(64, dtype)
    seen = of(one)
    for step in (1, 2, 4, 8, 16, 32):
        other = one.clone()
        size = other.element_size()
        other.view(torch.uint8)[size - 1 :: size * step] ^= 1 << bit
        seen += of(other)
    assert len(set(seen)) == 7


def test_chunks_that_change_places_are_seen() -> None:
    one = sample(2 * digest.CHUNK)
    assert of(one) != of(torch.cat([one[digest.CHUNK :], one[: digest.CHUNK]]))


def test_nan_is_compared_by_its_bits_and_zero_has_a_sign() -> None:
    quiet = torch.tensor([float("nan")])
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert bool(other.isnan())
    assert of(quiet) == of(quiet.clone())
    assert of(quiet) != of(other)
    assert of(torch.tensor([0.0])) != of(torch.tensor([-0.0]))


def test_a_trailing_zero_counts() -> None:
    assert of(torch.zeros(3)) != of(torch.zeros(4))


def test_the_layout_in_memory_is_read_as_it_lies() -> None:
    image = sample(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    for form in (
        image.to(memory_format=torch.channels_last),
        image.transpose(1, 3),
        image[:, ::2],
        image[1:],
    ):
        assert of(form) == of(form.clone(memory_format=torch.preserve_format))
    for odd in (sample(11)[3:], sample(10)[3:], sample(9, torch.bfloat16)[1:], sample(8, torch.bfloat16)[3:]):
        assert of(odd) == of(odd.clone())
    assert of(sample(9, torch.bfloat16)[1:]) != of(sample(9, torch.bfloat16)[:8])


def test_what_has_no_plain_memory_has_no_digest() -> None:
    assert of(None, torch.eye(3).to_sparse(), torch.empty(3, device="meta")) == [None, None, None]
    assert of(torch.empty(0))[0] is not None


def test_many_are_one_number_in_which_places_and_gaps_count() -> None:
    assert digest.combined([1, 2, None]) == digest.combined([1, 2, None])
    numbers = [digest.combined(c) for c in ([1, 2], [2, 1], [1, None], [None, 1], [1, 2, None], [1])]
    assert len(set(numbers)) == len(numbers)
    assert all(-(1 << 63) <= n < 1 << 63 for n in numbers)


def test_no_random_number_of_the_program_is_drawn() -> None:
    before = torch.random.get_rng_state()
    of(sample(100))
    torch.randn(0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_tensors_that_are_not_finite_are_named() -> None:
    fine, large = torch.ones(3), torch.full((4,), 3e38)
    bad, worse = torch.tensor([1.0, float("nan")]), torch.tensor([float("inf"), -float("inf")])
    assert digest.not_finite(torch, [fine, bad, None, large, torch.ones(2, dtype=torch.int64), worse]) == [
        1,
        5,
    ]
