"""What a client holds of a shard."""

from __future__ import annotations

from opsq.client.shards.holdings import Holdings
from opsq.wire import messages as m


def reserved(mask: int, mac: int) -> m.Reserved:
    return m.Reserved(0, mac, 60.0, [m.Grant(1, 0, mask, 0, mac)])


def held(mask: int, mac: int) -> m.HeldChunks:
    return m.HeldChunks(1, 0, mask, mac, 0, mask, mac)


def masks(holdings: Holdings) -> list[int]:
    return [one.mask for one in holdings.told()[0]]


def test_chunks_are_held_until_they_end_each_under_its_own_token() -> None:
    holdings = Holdings()
    holdings.granted(reserved(0b0011, 7))
    holdings.granted(reserved(0b1100, 8))
    holdings.ended([held(0b0001, 7)])
    assert masks(holdings) == [0b0010, 0b1100]
    holdings.ended([held(0b0010, 9)])
    assert masks(holdings) == [0b0010, 0b1100]
    holdings.ended([held(0b0010, 7), held(0b1100, 8)])
    assert holdings.told() == ([], [])


def test_chunks_that_are_revoked_end_under_any_token() -> None:
    holdings = Holdings()
    holdings.granted(reserved(0b0011, 7))
    holdings.granted(reserved(0b1100, 8))
    holdings.ended([m.ChunkMask(1, 0, 0b0110)])
    assert masks(holdings) == [0b0001, 0b1000]
    holdings.ended([m.ChunkMask(1, 0, 0b1111)])
    assert masks(holdings) == []


def test_what_was_started_is_told_until_it_ends() -> None:
    holdings = Holdings()
    holdings.granted(reserved(0b0011, 7))
    holdings.started([m.ChunkMask(1, 0, 0b0111)])
    assert [one.mask for one in holdings.told()[1]] == [0b0011]
    holdings.ended([held(0b0001, 7)])
    assert [one.mask for one in holdings.told()[1]] == [0b0010]


def test_chunk_is_held_until_it_has_ended() -> None:
    holdings = Holdings()
    assert not holdings.holds(held(1, 7))
    holdings.granted(reserved(7, 7))
    holdings.ended([held(2, 7)])
    assert holdings.holds(held(1, 7))
    assert not holdings.holds(held(2, 7))
    assert not holdings.holds(held(1, 8))


def test_what_a_client_reclaims_is_held_but_for_what_is_refused() -> None:
    holdings = Holdings()
    holdings.reclaimed([held(6, 7)], [m.Refusal(1, 0, 4, "reservation_lost", "free")])
    holdings.reclaimed([held(2, 7)], [])
    assert masks(holdings) == [2]
