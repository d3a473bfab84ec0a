from __future__ import annotations

import json

import aiohttp
import pytest
from tests.support.adapters import write_adapter
from tests.support.plane import API, register, until


def form(folder, name: str, *, weights: bool = True) -> aiohttp.FormData:
    data = aiohttp.FormData()
    data.add_field("adapter", json.dumps({"path": name, "step": 1}), content_type="application/json")
    data.add_field("config", (folder / "adapter_config.json").read_bytes(), filename="adapter_config.json")
    if weights:
        data.add_field(
            "weights", (folder / "adapter_model.safetensors").read_bytes(), filename="adapter_model.safetensors"
        )
    return data


async def test_upload(plane, tmp_path):
    folder = write_adapter(tmp_path / "mine")
    r = await plane.client.post(API + "/adapters?wait=30", data=form(folder, "tiny@1"), headers=plane.as_())
    assert (r.status, (await r.json())["state"]) == (201, "live")
    assert sorted(p.name for p in plane.config.adapters_dir.iterdir()) == ["tiny@1"]
    r = await plane.client.post(API + "/adapters", data=form(folder, "tiny@1"), headers=plane.as_())
    assert r.status == 409
    r = await plane.client.post(API + "/adapters", data=form(folder, "tiny@2", weights=False), headers=plane.as_())
    assert (r.status, (await r.json())["error"]["field"]) == (422, "body.path")


@pytest.mark.parametrize("name", ["other@1", ".tmp-x@1", "tiny@999999999"])
async def test_an_upload_under_a_name_that_no_version_can_have_leaves_nothing(plane, tmp_path, name):
    url = "/slipstream/v1/adapters"
    data = form(write_adapter(tmp_path / "up" / "x@1"), name)
    r = await plane.client.post(url, data=data, headers=plane.as_("trainer"))
    assert r.status in (404, 422), await r.text()
    assert list(plane.config.adapters_dir.glob("*@*")) == [], "a retry would find the name taken"


async def test_what_cannot_be_served_is_refused_with_the_reason(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1", rank=64)
    status, body = await plane.ask("POST", "/adapters", {"path": "tiny@1"})
    assert status == 422
    assert "rank 64" in body["error"]["message"]
    _, listed = await plane.ask("GET", "/adapters")
    assert [(a["name"], a["state"]) for a in listed["adapters"]] == [("tiny@1", "refused")]
    for path, wanted in (("tiny@2", 404), ("other@1", 404), ("../x", 422), ("tiny", 422), ("tiny@0", 422)):
        assert (await plane.ask("POST", "/adapters", {"path": path}))[0] == wanted, path


async def test_only_a_trainer_registers_and_only_an_admin_decides(plane):
    assert (await plane.ask("POST", "/adapters", {"path": "tiny@1"}, scopes=["inference"]))[0] == 403
    assert (await plane.ask("POST", "/adapters/1/promote", {}, scopes=["trainer"]))[0] == 403
    assert (await plane.ask("GET", "/adapters", scopes=["inference"]))[0] == 200


async def test_states_outlive_a_restart(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    await plane.ask("POST", "/adapters?wait=30", {"path": "tiny@1"})
    await plane.again()
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny@1"}
    await until(lambda: plane.deps.live.value["engines"][0]["loaded"] == ["tiny@1"])


async def test_what_a_demotion_costs_training_and_that_the_base_model_is_no_adapter(make_plane):
    plane = await make_plane(gate={"holdout": 0.0}, groups={"size": 3})
    await register(plane, 1)
    for n in range(2):
        await plane.call(f"e{n}", task="t", adapter="tiny@1", done=True)
        await plane.seen(f"e{n}")

    async def says():
        said = (await plane.ask("GET", "/adapters/tiny@1/effect?action=demote"))[1]["says"]
        return said if any(s.startswith("1 group not trained on yet has runs of tiny@1") for s in said) else None

    said = await until(says)
    assert any("works on a step from tiny@1" in s for s in said)
    assert not any("step" in s for s in (await plane.ask("GET", "/adapters/tiny@1/effect?action=freeze"))[1]["says"])
    status, refused = await plane.ask("POST", "/adapters/tiny/promote", {})
    assert (
        status == 404
        and "is the base model" in refused["error"]["message"]
        and "demote tiny@" in refused["error"]["fix"]
    )
    status, refused = await plane.ask("POST", "/adapters/Qwen%2FQwen3@1/promote", {})
    assert status == 404 and refused["error"]["message"] == "no adapter Qwen/Qwen3@1"


@pytest.mark.parametrize("name", ["adapter_config.json\0", "a\0b", "\0", "a\x01b"])
async def test_a_name_that_no_file_can_have_is_a_bad_request(plane, name):
    for place in (f'name="config"; filename="{name}"', f'name="{name}"'):
        body = f"--XX\r\nContent-Disposition: form-data; {place}\r\n\r\n{{}}\r\n--XX--\r\n".encode()
        headers = {**plane.as_(), "content-type": "multipart/form-data; boundary=XX"}
        reply = await plane.client.post(API + "/adapters", data=body, headers=headers)
        assert (reply.status, (await reply.json())["error"]["field"]) == (400, "body")
    assert [*plane.config.adapters_dir.iterdir()] == []
