from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dialects import ALL, head

from slipstream_proxy.dialects import BY_NAME


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(BY_NAME)),
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "message",
                        "delta",
                        "logprobs",
                        "content",
                        "messages",
                        "token_ids",
                        "usage",
                        "type",
                        "index",
                    ]
                ),
                x,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(lambda v: json.dumps(v).encode()),
    st.booleans(),
)
def test_rubbish_never_raises(name, rubbish, stream):
    dialect = BY_NAME[name]
    changes = head(dialect=name, stream=stream)
    dialect.parse(b"{}", rubbish, changes)
    dialect.parse(rubbish, b"", changes)
    dialect.parse(b"{}", b"data: " + rubbish + b"\n\n", changes)
    dialect.whole(rubbish, ALL)
    dialect.event(b"data: " + rubbish + b"\n\n", ALL)
    dialect.said(rubbish, stream=stream)
    try:
        body = json.loads(rubbish)
    except ValueError:
        return
    if isinstance(body, dict):
        dialect.turn(body)
        dialect.inject(body)
