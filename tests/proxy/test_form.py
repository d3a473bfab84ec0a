"""Models that a form names."""

from __future__ import annotations

import pytest

from slipstream_proxy.data.routes.form import find_model


@pytest.mark.parametrize(
    ("body", "kind", "found"),
    [
        (
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            b"m",
        ),
        (
            b"--b\r\nX: y\r\ncontent-disposition: form-data; name=model\r\n\r\n\r\n--b--",
            'multipart/form-data; boundary="b"',
            b"",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="model"; filename="f"\r\n\r\nm\r\n--b--',
            "multipart/form-data; boundary=b",
            None,
        ),
        (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm', "multipart/form-data; boundary=b", None),
        (b"--b--\r\n", "multipart/form-data; boundary=b", None),
        (b"", "multipart/form-data; boundary=b", None),
        (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--', "multipart/form-data", None),
    ],
)
def test_where_a_form_names_its_model(body, kind, found):
    place = find_model(body, kind)
    assert (None if place is None else body[slice(*place)]) == found
