from __future__ import annotations

import inspect
import re

from slipstream_proxy.control.funnel_fixes import UNTRAINABLE, fix_untrainable
from slipstream_proxy.dialects import call_reader, sampling


def test_every_reason_that_the_code_gives_has_a_fix_of_its_own():
    text = "".join(inspect.getsource(m) for m in (sampling, call_reader))
    given = set(re.findall(r'return "([a-z][a-z_ 0-9-]+)"', text)) - {"text"}
    assert {"temperature 0", "forced tool", "top_p"} <= given
    missing = {r for r in given if fix_untrainable(r).startswith("docs/capture.md")}
    assert missing <= {
        "unreadable sampling parameters",
        "engine options",
        "watermark",
        "logprobs do not match the token ids",
    }


def test_a_reason_with_a_number_is_known_by_its_beginning():
    assert fix_untrainable("temperature 0.0") == UNTRAINABLE["temperature 0"]
    assert "docs/capture.md" in fix_untrainable("something new")
