from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server import Reply, Seen, Server

from slipstream.client import Client
from slipstream.config import Config, load_config
from slipstream.contract import Adapter, Event
from slipstream.errors import ConfigError, SlipstreamError, StartError
from slipstream_models.push import card, lineage, push

WEIGHTS = b"weights" * 100


def adapter(name: str = "inbox@3", **more: object) -> dict[str, object]:
    model, _, version = name.partition("@")
    return {
        "name": name,
        "model": model,
        "version": int(version),
        "state": "live",
        "created": 1.0,
        "path": name,
        **more,
    }


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = tmp_path / "adapters" / "inbox@3"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return load_config(env={}, flags=[f"adapters.dir={tmp_path}/adapters", "engine.model=Qwen/Qwen3-4B"])


def knows(server: Server, *adapters: dict[str, object]) -> None:
    server.on("GET", "/adapters", {"adapters": list(adapters), "live": {}})
    server.on("GET", "/training/events", b"")


def test_the_card_says_what_it_was_trained_on() -> None:
    told = Adapter(**adapter(step=7, parent="inbox@2", batches=["b1", "b2"], gate={"control_episodes": 9}))
    text = card(told, "Qwen/Qwen3-4B")
    assert text.startswith("---\nlibrary_name: peft\nbase_model: Qwen/Qwen3-4B\nbase_model_relation: adapter\n")
    for said in (
        "\n---\n\n# inbox@3\n",
        "- step: 7",
        "- made: 1970-01-01",
        "- parent: inbox@2",
        "- batches: b1, b2",
        "- state when it was pushed: live",
        '"control_episodes":9',
    ):
        assert said in text
    first = card(Adapter(**adapter("inbox@1")), "base")
    assert "- parent: base" in first
    assert "- batches: unknown" in first


def test_the_card_has_a_row_for_each_step(config: Config) -> None:
    known = [
        Adapter(**adapter("inbox@1", step=1, parent="inbox", batches=["b1"])),
        Adapter(**adapter("inbox@2", step=2, parent="inbox@1", batches=["b2"], state="rolled_back")),
        Adapter(**adapter("inbox@3", step=3, parent="inbox@1", batches=["b3"])),
    ]
    assert [a.name for a in lineage(known[2], known)] == ["inbox@1", "inbox@3"]
    data = {"adapter": "inbox@3", "groups": 8, "episodes": 64, "calls": 200, "tokens": 5000, "reward": 0.51234}
    events = [Event(kind="step", data=data), Event(kind="step", data={"adapter": "inbox@2", "groups": 99})]
    text = card(known[2], "base", known=known, events=events, config=config)
    assert "| inbox@1 | 1 | b1 |  |  |  |  |  |\n| inbox@3 | 3 | b3 | 8 | 64 | 200 | 5000 | 0.5123 |\n" in text
    assert "inbox@2" not in text
    assert "loss cispo" in text
    assert 'Rewards: {"reward": 1.0}' in text


def test_a_lineage_that_turns_in_a_circle_ends() -> None:
    a, b = Adapter(**adapter("m@1", parent="m@2")), Adapter(**adapter("m@2", parent="m@1"))
    assert [x.name for x in lineage(a, [a, b])] == ["m@2", "m@1"]


@pytest.mark.parametrize("version", ["3", "inbox@3"])
def test_to_a_folder(server: Server, tmp_path: Path, config: Config, version: str) -> None:
    knows(server, adapter("inbox@2"), adapter())
    with Client(server.url) as client:
        where = Path(push(client, config, version, str(tmp_path / "out" / "deep")))
        assert where == tmp_path / "out/deep/inbox@3"
        assert (where / "adapter_model.safetensors").read_bytes() == WEIGHTS
        assert "# inbox@3" in (where / "README.md").read_text()
        assert not (config.adapters_dir / "inbox@3" / "README.md").exists()
        with pytest.raises(SlipstreamError, match="is there already; versions are immutable"):
            push(client, config, version, str(tmp_path / "out" / "deep"))


def test_what_cannot_be_pushed(server: Server, tmp_path: Path, config: Config) -> None:
    knows(server, adapter("inbox@2"), adapter(), adapter("other@3"))
    with Client(server.url) as client:
        with pytest.raises(SlipstreamError, match="no adapter 9: `slipstream adapters` lists them"):
            push(client, config, "9", str(tmp_path))
        with pytest.raises(SlipstreamError, match=r"has no adapter: is adapters\.dir"):
            push(client, config, "2", str(tmp_path))
        with pytest.raises(SlipstreamError, match="3 is inbox@3 and other@3: give the full name"):
            push(client, config, "3", str(tmp_path))
        with pytest.raises(ConfigError, match="write s3://bucket/prefix"):
            push(client, config, "inbox@3", "s3://")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> dict[str, bytes]:
    """A bucket of which the server keeps what is put into it."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", server.url), ("AWS_ACCESS_KEY_ID", "id-of-a-test"), ("AWS_SECRET_ACCESS_KEY", "secret-of-a-test"),
        ("AWS_DEFAULT_REGION", "eu-central-1"), ("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", str(tmp_path / "none")), ("AWS_MAX_ATTEMPTS", "1"),
        ("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    kept: dict[str, bytes] = {}

    def put(seen: Seen) -> Reply:
        assert seen.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=id-of-a-test/")
        kept[seen.path] = seen.body
        return Reply(b"", 200, {"etag": '"x"'})

    for name in ("README.md", "adapter_config.json", "adapter_model.safetensors"):
        server.routes["PUT", f"/bucket/agents/inbox-3/{name}"] = put
    return kept


def test_to_a_bucket(server: Server, config: Config, aws: dict[str, bytes]) -> None:
    pytest.importorskip("boto3")
    knows(server, adapter())
    with Client(server.url) as client:
        assert push(client, config, "3", "s3://bucket/agents/inbox-3/") == "s3://bucket/agents/inbox-3/"
        assert [p.rpartition("/")[2] for p in aws] == ["README.md", "adapter_model.safetensors", "adapter_config.json"]
        assert WEIGHTS in aws["/bucket/agents/inbox-3/adapter_model.safetensors"]
        with pytest.raises(SlipstreamError, match="--to s3://other/x: "):
            push(client, config, "3", "s3://other/x")


def test_to_a_bucket_by_the_command(
    server: Server, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(server, adapter())
    monkeypatch.setitem(sys.modules, "boto3", None)
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with Client(server.url) as client:
        with pytest.raises(StartError, match="neither boto3 .* nor the `aws` command is installed"):
            push(client, config, "3", "s3://bucket/x")
        command = tools / "aws"
        command.write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n[ -e "$4/README.md" ] || exit 9\nexit ${{AWS_CODE:-0}}\n'
        )
        command.chmod(0o755)
        assert push(client, config, "3", "s3://bucket/x") == "s3://bucket/x"
        asked = (tmp_path / "asked").read_text().split()
        assert (asked[:3], asked[-1]) == (["s3", "cp", "--recursive"], "s3://bucket/x")
        assert not os.path.exists(asked[3])
        monkeypatch.setenv("AWS_CODE", "1")
        with pytest.raises(SlipstreamError, match="ended with exit code 1"):
            push(client, config, "3", "s3://bucket/x")


def hub(server: Server) -> dict[str, bytes]:
    """The hub's protocol as far as a commit of small files and one LFS object goes. → Path in the repository → content."""
    stored: dict[str, bytes] = {}
    objects: dict[str, bytes] = {}

    def modes(seen: Seen) -> Reply:
        files = [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular", "shouldIgnore": False} for f in seen.json["files"]]  # fmt: skip
        return Reply({"files": files})

    def batch(seen: Seen) -> Reply:
        found = []
        for o in seen.json["objects"]:
            found.append({**o, "actions": {"upload": {"href": f"{server.url}/lfs/{o['oid']}"}}})
            server.routes["PUT", f"/lfs/{o['oid']}"] = keep
        return Reply({"transfer": "basic", "objects": found})

    def keep(seen: Seen) -> Reply:
        objects[hashlib.sha256(seen.body).hexdigest()] = seen.body
        return Reply(b"")

    def commit(seen: Seen) -> Reply:
        for line in map(json.loads, seen.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                stored[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                stored[value["path"]] = objects[value["oid"]]
        return Reply({"commitUrl": f"{server.url}/me/agent/commit/1", "commitOid": "1" * 40})

    server.on("POST", "/api/repos/create", {"url": f"{server.url}/me/agent"})
    server.on("POST", "/api/validate-yaml", {"errors": [], "warnings": []})
    server.routes["POST", "/api/models/me/agent/preupload/main"] = modes
    server.routes["POST", "/me/agent.git/info/lfs/objects/batch"] = batch
    server.routes["POST", "/api/models/me/agent/commit/main"] = commit
    return stored


def cli(server: Server, config: Config, to: str, **more: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's client reads its environment at import."""
    argv = [
        sys.executable, "-m", "slipstream.cli", "adapters", "--url", server.url, "--set", f"adapters.dir={config.adapters_dir}", "--set", "engine.model=Qwen/Qwen3-4B",
        "push", "3", "--to", to,
    ]  # fmt: skip
    env = {**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": "hf_of_a_test", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1", **more}  # fmt: skip
    return subprocess.run(argv, check=False, env=env, capture_output=True, text=True, timeout=120)


def test_to_the_hub(server: Server, config: Config) -> None:
    pytest.importorskip("huggingface_hub")
    knows(server, adapter())
    stored = hub(server)
    done = cli(server, config, "hf:me/agent")
    assert (done.returncode, done.stdout) == (0, "hf:me/agent\n"), done.stderr
    assert set(stored) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert stored["adapter_model.safetensors"] == WEIGHTS
    assert b"# inbox@3" in stored["README.md"]
    (made,) = server.asked("POST", "/api/repos/create")
    assert made.headers["authorization"] == "Bearer hf_of_a_test"
    assert made.json["visibility"] == "private"


def test_a_hub_that_refuses(server: Server, config: Config) -> None:
    pytest.importorskip("huggingface_hub")
    knows(server, adapter())
    server.on("POST", "/api/repos/create", {"error": "no such organisation"}, 403)
    done = cli(server, config, "hf:me/agent")
    assert done.returncode == 1
    assert "--to hf:me/agent: 403" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_that_is_away(server: Server, config: Config) -> None:
    pytest.importorskip("huggingface_hub")
    knows(server, adapter())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = cli(server, config, "hf:me/agent", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert "--to hf:me/agent: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("gcs://b/x", "gcs: is not known"), ("r2://b/x", "r2: is not known"), ("ftp://h/x", "ftp: is not known"),
        ("file:///x", "file: is not known"), ("GDrive:x", "gdrive: is not known"), ("my:folder", "(./my:folder is one)"),
        ("me@host:/x", "me@host: is not known"), (" gs://b/x", " gs: is not known"), ("", "--to is empty"),
        ("gs://", "write gs://bucket/prefix"), ("gs:b/x", "write gs://bucket/prefix"), ("az:///x", "write az://"),
        ("hf:name", "write hf:owner/name"), ("fireworks:name", "write fireworks:account/name"),
        ("fireworks://a/b", "write fireworks:account/name"), ("wandb:a/b", "write wandb:entity/project/name"),
        ("together:", "write together:owner/name"), ("fireworks:a/b", "FIREWORKS_API_KEY is not set"),
        ("together:a/b", "TOGETHER_API_KEY is not set"),
    ],
)  # fmt: skip
def test_an_unknown_place_is_refused_before_anything_is_made(
    server: Server, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, to: str, said: str
) -> None:
    for name in ("FIREWORKS_API_KEY", "TOGETHER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with Client(server.url) as client, pytest.raises(ConfigError) as told:
        push(client, config, "3", to)
    assert said in str(told.value)
    assert sorted(tmp_path.rglob("*")) == before and not server.seen


def test_a_folder_whose_name_has_a_colon(server: Server, tmp_path: Path, config: Config) -> None:
    knows(server, adapter())
    with Client(server.url) as client:
        assert Path(push(client, config, "3", f"{tmp_path}/my:folder")).is_dir()


FILES = ["README.md", "adapter_model.safetensors", "adapter_config.json"]


def fireworks(server: Server) -> dict[str, bytes]:
    """Its gateway: a model is made, addresses are given, files come, and they are checked."""
    stored: dict[str, bytes] = {}
    models = "/v1/accounts/me/models"

    def addresses(seen: Seen) -> Reply:
        assert seen.headers["authorization"] == "Bearer key-of-a-test"
        signed = {name: f"{server.url}/signed/{name}" for name in seen.json["filenameToSize"]}
        return Reply({"filenameToSignedUrls": signed})

    def put(seen: Seen) -> Reply:
        assert "authorization" not in seen.headers and seen.headers["content-type"] == "application/octet-stream"
        assert seen.headers["x-goog-content-length-range"] == f"{len(seen.body)},{len(seen.body)}"
        stored[seen.path.removeprefix("/signed/")] = seen.body
        return Reply(b"")

    def valid(_: Seen) -> Reply:
        return Reply({}) if len(stored) == len(FILES) else Reply({"message": "files are missing"}, 400)

    server.on("POST", models, {"name": "accounts/me/models/agent"})
    server.routes["POST", f"{models}/agent:getUploadEndpoint"] = addresses
    server.routes["GET", f"{models}/agent:validateUpload"] = valid
    server.routes |= {("PUT", f"/signed/{name}"): put for name in FILES}
    return stored


@pytest.mark.parametrize("base", [None, "accounts/fireworks/models/other"])
def test_to_fireworks(server: Server, config: Config, monkeypatch: pytest.MonkeyPatch, base: str | None) -> None:
    knows(server, adapter())
    stored = fireworks(server)
    told = {"r": 16, "target_modules": ["v_proj", "q_proj"]}
    (config.adapters_dir / "inbox@3" / "adapter_config.json").write_text(json.dumps(told))
    monkeypatch.setenv("FIREWORKS_API_KEY", "key-of-a-test")
    monkeypatch.setenv("FIREWORKS_API_BASE", server.url)
    to = "fireworks:me/agent" + (f"?base={base}" if base else "")
    with Client(server.url) as client:
        assert push(client, config, "3", to) == "accounts/me/models/agent"
        (made,) = server.asked("POST", "/v1/accounts/me/models")
        details = {
            "baseModel": base or "accounts/fireworks/models/qwen3-4b",
            "r": 16,
            "targetModules": ["q_proj", "v_proj"],
        }
        assert made.json == {"modelId": "agent", "model": {"kind": "HF_PEFT_ADDON", "peftDetails": details}}
        assert stored["adapter_model.safetensors"] == WEIGHTS and sorted(stored) == sorted(FILES)
        server.on("POST", "/v1/accounts/me/models", {"message": "no such base model"}, 400)
        with pytest.raises(SlipstreamError, match="400: .*no such base model"):
            push(client, config, "3", to)
        with pytest.raises(ConfigError, match="leave --merged out"):
            push(client, config, "3", to, merged=True)


def test_to_together(server: Server, config: Config) -> None:
    """By way of the hub, which is where it takes adapters from."""
    pytest.importorskip("huggingface_hub")
    knows(server, adapter())
    stored = hub(server)
    server.on("POST", "/v1/models", {"data": {"job_id": "job-1", "model_name": "agent"}, "message": "Job created."})
    keys = {"TOGETHER_API_KEY": "key-of-a-test", "TOGETHER_BASE_URL": f"{server.url}/v1"}
    done = cli(server, config, "together:me/agent", **keys)
    assert (done.returncode, done.stdout) == (0, "together:me/agent, job job-1\n"), done.stderr
    assert stored["adapter_model.safetensors"] == WEIGHTS
    (asked,) = server.asked("POST", "/v1/models")
    assert asked.headers["authorization"] == "Bearer key-of-a-test"
    assert asked.json == {
        "model_name": "agent", "model_source": f"{server.url}/me/agent", "model_type": "adapter",
        "base_model": "Qwen/Qwen3-4B", "hf_token": "hf_of_a_test",
    }  # fmt: skip
    server.on("POST", "/v1/models", {"message": "queued"})
    done = cli(server, config, "together:me/agent", **keys)
    assert done.returncode == 1 and "the service named no job" in done.stderr


def test_to_weights_and_biases_by_its_command(
    server: Server, tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(server, adapter())
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/bin:/usr/bin")
    with Client(server.url) as client:
        with pytest.raises(StartError, match="the `wandb` command is not installed"):
            push(client, config, "3", "wandb:me/agents/inbox")
        command = tools / "wandb"
        command.write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n[ -e "$7/README.md" ] || exit 9\necho no; exit ${{CODE:-0}}\n'
        )
        command.chmod(0o755)
        assert push(client, config, "3", "wandb:me/agents/inbox") == "wandb:me/agents/inbox"
        assert (tmp_path / "asked").read_text().startswith("artifact put --type model --name me/agents/inbox /")
        monkeypatch.setenv("CODE", "1")
        with pytest.raises(SlipstreamError, match="ended with exit code 1: no"):
            push(client, config, "3", "wandb:me/agents/inbox")


@pytest.mark.parametrize(("to", "package"), [("gs://b/x", "gcsfs"), ("az://c/x", "adlfs"), ("abfs://c/x", "adlfs")])
def test_a_cloud_without_its_package(
    server: Server, config: Config, monkeypatch: pytest.MonkeyPatch, to: str, package: str
) -> None:
    knows(server, adapter())
    monkeypatch.setitem(sys.modules, package, None)
    with Client(server.url) as client, pytest.raises(StartError, match=f"pip install {package}"):
        push(client, config, "3", to)


def test_to_google_cloud_storage(server: Server, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs")
    knows(server, adapter())
    stored: dict[str, bytes] = {}

    def upload(seen: Seen) -> Reply:
        kind, told, data = seen.body.split(b"\r\n\r\n" if b"\r\n\r\n" in seen.body else b"\n\n", 2)
        name = json.loads(told[: told.rindex(b"}") + 1])["name"]
        stored[name] = data
        return Reply({"name": name, "bucket": "bucket", "size": "1", "generation": "1", "md5Hash": "x"})

    server.routes["POST", "/upload/storage/v1/b/bucket/o"] = upload
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    with Client(server.url) as client:
        assert push(client, config, "3", "gs://bucket/agents/3/") == "gs://bucket/agents/3/"
        assert [*stored] == [f"agents/3/{name}" for name in FILES]
        assert WEIGHTS in stored["agents/3/adapter_model.safetensors"]
        with pytest.raises(SlipstreamError, match="--to gs://other/x: "):
            push(client, config, "3", "gs://other/x")


def test_to_azure(server: Server, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs")
    knows(server, adapter())
    stored: dict[str, bytes] = {}

    def put(seen: Seen) -> Reply:
        assert seen.headers["authorization"].startswith("SharedKey account:")
        stored[seen.path.removeprefix("/account/container/")] = seen.body
        when = "Sun, 29 Nov 2026 11:00:00 GMT"
        return Reply(b"", 201, {"etag": '"1"', "last-modified": when, "date": when, "x-ms-request-id": "1"})

    for name in FILES:
        server.routes["PUT", f"/account/container/agents/3/{name}"] = put
    key = base64.b64encode(b"key of a test").decode()
    told = f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={key};BlobEndpoint={server.url}/account;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", told)
    with Client(server.url) as client:
        assert push(client, config, "3", "az://container/agents/3") == "az://container/agents/3"
        assert [*stored] == [f"agents/3/{name}" for name in FILES]
        assert stored["agents/3/adapter_model.safetensors"] == WEIGHTS
        with pytest.raises(SlipstreamError, match="--to az://other/x: "):
            push(client, config, "3", "az://other/x")
