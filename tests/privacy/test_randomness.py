"""What a secret names: every purpose, round, period and client has a stream of its own, and the same one again."""

from veilrec.privacy import randomness

SECRET = bytes(range(32))


def drawn(source):
    return source.words(8).tobytes()


def test_no_two_streams_of_a_secret_are_the_same():
    each = {("comparison",): randomness.noise_of_comparison(SECRET)}
    for number in range(3):
        each["sum", number] = randomness.noise_of_sum(SECRET, number)
        each["histogram", number] = randomness.noise_of_histogram(SECRET, number)
        for client in range(3):
            for name in ("client", "learning", "report"):
                each[name, number, client] = getattr(randomness, f"noise_of_{name}")(SECRET, number, client)
    found = {}
    for name, source in each.items():
        assert found.setdefault(drawn(source), name) == name
    assert drawn(randomness.noise_of_sum(SECRET, 1)) == drawn(randomness.noise_of_sum(SECRET, 1))
    assert drawn(randomness.noise_of_sum(SECRET[::-1], 1)) not in found
