"""Inputs without coverage: the same from the same numbers, and nothing of them lost."""

from __future__ import annotations

import pytest
from tests.fuzz.mutator import BLOCK, LONGEST, Mutator, pieces_of, read_corpus

CORPUS = [b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"]


def test_a_block_is_a_function_of_corpus_seed_and_number():
    one, same = Mutator(CORPUS, 1), Mutator(CORPUS, 1)
    third = [one.block(number) for number in range(4)][3]
    assert same.block(3) == third
    assert third not in (one.block(2), Mutator(CORPUS, 2).block(3), Mutator([], 1).block(3))


@pytest.mark.parametrize("corpus", [CORPUS, [], [b"\n"], [b"x" * LONGEST]])
def test_inputs_are_pieces_and_no_longer_than_allowed(corpus):
    mutator = Mutator(corpus, 0)
    inputs = [parts for number in range(8) for parts in mutator.block(number)]
    assert len(inputs) == 8 * BLOCK
    assert all(all(parts) and len(b"".join(parts)) <= LONGEST for parts in inputs)
    assert {len(parts) for parts in inputs} > {1, 2, 3}
    assert len({tuple(parts) for parts in inputs}) > 4 * BLOCK


def test_cutting_loses_nothing():
    mutator, data = Mutator([], 0), bytes(range(256))
    assert all(b"".join(mutator.cut(data)) == data for _ in range(200))


def test_a_mended_length_is_that_of_the_body():
    data = bytearray(b"POST / HTTP/1.1\r\ncontent-length:99\r\n\r\nabc")
    Mutator([], 0).mend(data)
    assert data == b"POST / HTTP/1.1\r\ncontent-length:3\r\n\r\nabc"


def test_a_corpus_is_read_as_the_guided_fuzzer_reads_it(tmp_path):
    assert pieces_of(b"hello\x00\x02") == [b"hel", b"l", b""]
    (tmp_path / "b").write_bytes(b"hello\x00\x02")
    (tmp_path / "a").write_bytes(b"ab\x3f")
    (tmp_path / "c").write_bytes(b"")
    assert read_corpus(tmp_path) == [b"ab", b"hell"]
