"""Where an adapter can be pushed to. A destination is checked before anything is read, made or sent."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs

import httpx

from slipstream.errors import ConfigError, SlipstreamError, StartError

Send = Callable[[Path, str], str]
"""Sends a folder with an adapter of a base model. Returns where it is."""
DESTINATION_SCHEMES = {
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "az": "az://container/prefix",
    "abfs": "abfs://container/prefix",
    "hf": "hf:owner/name",
    "fireworks": "fireworks:account/name?base=accounts/fireworks/models/…",
    "together": "together:owner/name?base=…",
    "wandb": "wandb:entity/project/name",
}
"""How each is written."""
SCHEME_PACKAGES = {"gs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_SCHEME = re.compile(r"([^/\\:~.][^/\\:]+):")
"""What stands before a colon, also as of ``user@host:``; one letter is a drive of Windows."""
_FORMS = {
    "bucket": re.compile(r"//[^/]+(?:/.*)?"),
    "pair": re.compile(r"[\w.-]+/[\w.-]+(?:\?base=[\w./:-]+)?"),
    "three": re.compile(r"[\w.-]+/[\w.-]+/[\w.-]+"),
}
UPLOAD_TIMEOUT_S = 600.0


def destination(to: str, *, merged: bool) -> Send:
    """What sends there. Raises ``ConfigError`` if nothing does."""
    found = _SCHEME.match(to)
    if not to.strip():
        raise ConfigError(f"--to is empty: write a folder, or one of {', '.join(DESTINATION_SCHEMES.values())}")
    if found is None:
        return lambda ready, _: _to_folder(ready, Path(to).expanduser())
    scheme = found[1].lower()
    if scheme not in DESTINATION_SCHEMES:
        known = ", ".join(DESTINATION_SCHEMES.values())
        raise ConfigError(f"--to {to}: {scheme}: is not known. Known are a folder (./{to} is one) and {known}")
    form = "bucket" if "//" in DESTINATION_SCHEMES[scheme] else "three" if scheme == "wandb" else "pair"
    if not _FORMS[form].fullmatch(to[found.end() :]):
        raise ConfigError(f"--to {to}: write {DESTINATION_SCHEMES[scheme]}")
    if merged and scheme in ("fireworks", "together"):
        raise ConfigError(f"--to {to}: it takes adapters, not whole weights; leave --merged out")
    senders: dict[str, Callable[[Path, str, str], str]] = {
        "s3": _to_bucket, "hf": _to_hub, "fireworks": _to_fireworks, "together": _to_together, "wandb": _to_wandb,
    }  # fmt: skip
    send = senders.get(scheme, _to_filesystem)
    if scheme in ("fireworks", "together"):
        _token(to, f"{scheme.upper()}_API_KEY")
    return lambda ready, base: send(ready, to, base)


def _files(ready: Path) -> Iterator[Path]:
    """The configuration last: what lists the place meanwhile sees no adapter without its weights."""
    yield from sorted((p for p in ready.rglob("*") if p.is_file()), key=lambda p: (p.suffix == ".json", p))


def _to_folder(ready: Path, folder: Path) -> str:
    target = folder / ready.name
    if target.exists():
        raise SlipstreamError(f"{target} is there already; versions are immutable, choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ready, target)
    return str(target)


def _to_filesystem(ready: Path, to: str, base: str) -> str:
    """By fsspec's file systems, which take credentials and addresses as their clouds' tools do."""
    package = SCHEME_PACKAGES[to.partition(":")[0].lower()]
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module(package)
    except ModuleNotFoundError as e:
        raise StartError(f"--to {to}: {e.name} is not installed: pip install {package}") from None
    try:
        files, folder = fsspec.url_to_fs(to)
        for path in _files(ready):
            files.put_file(str(path), f"{folder.rstrip('/')}/{path.relative_to(ready)}")
    except Exception as e:  # each of these packages has errors of its own
        raise SlipstreamError(f"--to {to}: {str(e).strip().splitlines()[0] if str(e).strip() else repr(e)}") from e
    return to


def _token(to: str, name: str) -> str:
    if not (token := os.environ.get(name)):
        raise ConfigError(f"--to {to}: {name} is not set")
    return token


def _name_and_base(to: str) -> tuple[str, str | None]:
    name, _, query = to.partition(":")[2].partition("?")
    return name, parse_qs(query).get("base", [None])[0]


class _Api:
    """A service's HTTP API. What it refuses is told in its own words."""

    def __init__(self, to: str, url: str, token: str) -> None:
        self.to = to
        headers = {"authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=UPLOAD_TIMEOUT_S, follow_redirects=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        return self.read(lambda: self.http.request(method, path, json=body))

    def read(self, send: Callable[[], httpx.Response]) -> dict[str, object]:
        try:
            response = send()
        except httpx.HTTPError as e:
            raise SlipstreamError(f"--to {self.to}: {e or type(e).__name__}") from e
        if response.is_error:
            raise SlipstreamError(f"--to {self.to}: {response.status_code}: {response.text[:300]}")
        try:
            found = response.json() if response.content else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}


def _to_fireworks(ready: Path, to: str, base: str) -> str:
    """A model of the account: made, then filled, then checked by the service."""
    (account, _, name), named = _name_and_base(to)[0].partition("/"), _name_and_base(to)[1]
    told = json.loads((ready / "adapter_config.json").read_text())
    named = named or f"accounts/fireworks/models/{base.rpartition('/')[2].lower().replace('.', 'p')}"
    details = {"baseModel": named, "r": told.get("r"), "targetModules": sorted(told.get("target_modules") or ())}
    url = os.environ.get("FIREWORKS_API_BASE", "https://api.fireworks.ai")
    models = f"/v1/accounts/{account}/models"
    body = {"modelId": name, "model": {"kind": "HF_PEFT_ADDON", "peftDetails": details}}
    sizes = {str(p.relative_to(ready)): p.stat().st_size for p in _files(ready)}
    with _Api(to, url, _token(to, "FIREWORKS_API_KEY")) as api:
        api.ask("POST", models, body)
        signed = api.ask("POST", f"{models}/{name}:getUploadEndpoint", {"filenameToSize": sizes})
        _put(api, ready, sizes, _object(signed.get("filenameToSignedUrls")))
        api.ask("GET", f"{models}/{name}:validateUpload")
    return f"{models.removeprefix('/v1/')}/{name}"


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _put(api: _Api, ready: Path, sizes: Mapping[str, int], signed: Mapping[str, object]) -> None:
    if not sizes.keys() <= signed.keys():
        raise SlipstreamError(f"--to {api.to}: the service named no address for each of {', '.join(sizes)}")
    with httpx.Client(timeout=UPLOAD_TIMEOUT_S) as http:  # signed addresses take no key
        for file, size in sizes.items():
            headers = {"content-type": "application/octet-stream", "x-goog-content-length-range": f"{size},{size}"}
            data = (ready / file).read_bytes()
            api.read(partial(http.put, str(signed[file]), content=data, headers=headers))


def _to_together(ready: Path, to: str, base: str) -> str:
    """It takes adapters from a hub alone: a private repository there, then the job that fetches it."""
    name, named = _name_and_base(to)
    token = _token(to, "HF_TOKEN")
    _to_hub(ready, f"hf:{name}", base)
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = os.environ.get("TOGETHER_BASE_URL", "https://api.together.ai/v1")
    body = {"model_name": name.rpartition("/")[2], "model_source": f"{hub}/{name}", "model_type": "adapter"}
    with _Api(to, url.rstrip("/"), _token(to, "TOGETHER_API_KEY")) as api:
        answer = api.ask("POST", "/models", {**body, "base_model": named or base, "hf_token": token})
    job = _object(answer.get("data")).get("job_id")
    if not job:
        raise SlipstreamError(f"--to {to}: the service named no job: {json.dumps(answer)[:300]}")
    return f"together:{name}, job {job}"


def _to_wandb(ready: Path, to: str, base: str) -> str:
    """By the ``wandb`` command. Address and key are W&B's own (``WANDB_BASE_URL``, ``WANDB_API_KEY``)."""
    if shutil.which("wandb") is None:
        raise StartError(f"--to {to}: the `wandb` command is not installed: pip install wandb")
    name = to.partition(":")[2]
    argv = ["wandb", "artifact", "put", "--type", "model", "--name", name, str(ready)]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        raise SlipstreamError(f"--to {to}: `wandb artifact put` ended with exit code {done.returncode}: {last}")
    return to


def _to_bucket(ready: Path, to: str, base: str) -> str:
    """With boto3 where it is installed, else with the ``aws`` command.

    Both take credentials, region and ``AWS_ENDPOINT_URL`` as AWS's tools do.
    """
    bucket, _, prefix = to.removeprefix("s3://").partition("/")
    try:
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
    except ModuleNotFoundError:
        if shutil.which("aws") is None:
            raise StartError(
                "--to s3://…: neither boto3 (pip install boto3) nor the `aws` command is installed"
            ) from None
        if code := subprocess.run(["aws", "s3", "cp", "--recursive", str(ready), to], check=False).returncode:
            raise SlipstreamError(f"`aws s3 cp` to {to} ended with exit code {code}") from None
        return to
    try:
        s3 = boto3.client("s3")
        for path in _files(ready):
            s3.upload_file(str(path), bucket, f"{prefix.rstrip('/')}/{path.relative_to(ready)}".lstrip("/"))
    except (Boto3Error, BotoCoreError, ClientError) as e:
        raise SlipstreamError(f"--to {to}: {e}") from e
    return to


def _to_hub(ready: Path, to: str, base: str) -> str:
    """A private repository, one commit. Token and address are the hub's own (``HF_TOKEN``, ``HF_ENDPOINT``)."""
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError:
        raise StartError("--to hf:…: huggingface_hub is not installed: pip install huggingface_hub") from None
    name = to.removeprefix("hf:")
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        api.create_repo(name, exist_ok=True, private=True)
        api.upload_folder(repo_id=name, folder_path=str(ready), commit_message=f"{ready.name}, by Slipstream")
    except Exception as e:  # without a network it is httpx's error from the hub's library 1, and httpx2's from 2
        raise SlipstreamError(f"--to {to}: {(str(e) or type(e).__name__).splitlines()[0]}") from e
    return to
