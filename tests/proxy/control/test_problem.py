from __future__ import annotations

from slipstream_proxy.control.shared.problem import Problem


def test_a_problem_says_what_and_how_to_mend_it() -> None:
    p = Problem(422, "limit: too large", field="limit", fix="at most 1000")
    assert (p.type, str(p), p.field, p.fix, p.headers) == ("invalid", "limit: too large", "limit", "at most 1000", {})
    assert Problem(418, "tea").type == "error"
    assert Problem(409, "twice", type="lost_race").type == "lost_race"
