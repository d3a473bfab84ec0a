"""Adapters that several API-server processes of one engine share.

vLLM refuses to load adapters at run time when it has more than one API server, because each process keeps its own
table. Here all of them read one file: the process that took ``/v1/load_lora_adapter`` loads the adapter into the engine
cores, and only then writes the file. So a name is known everywhere at once, after it can be served, under one number.
``/v1/unload_lora_adapter`` removes it from the file first.

The file belongs to the process that started the API servers, so that a new engine begins with no adapters.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict

from slipstream_vllm import adapter_slots, packing
from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm.lora.request import LoRARequest

log = logging.getLogger("vllm.slipstream")
HELLO_PATH = "/slipstream"
ROUTES_VARIABLE = "SLIPSTREAM_ENGINE_ADAPTERS"
"""Environment: 1 serves vLLM's load and unload routes with any number of API servers."""
SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
RESPONSE_MODELS = {
    "function": "function_tool:FunctionTool",
    "custom": "custom_tool:CustomTool",
    "namespaced": "namespace_tool:ToolFunction",
    "web_search": "web_search_tool:WebSearchTool",
    "image_generation": "tool:ImageGeneration",
    "function_call": "response_function_tool_call:ResponseFunctionToolCall",
    "custom_tool_call": "response_custom_tool_call:ResponseCustomToolCall",
    "arguments_done": "response_function_call_arguments_done_event:ResponseFunctionCallArgumentsDoneEvent",
}
"""What vLLM says back in a response → its class in ``openai.types.responses``."""
COUNT_BYTES = 8
"""Bytes of the number of writings, little-endian."""


class AdapterEntry(TypedDict):
    id: int
    path: str
    base: str | None


class State(TypedDict):
    next: int
    adapters: dict[str, AdapterEntry]


def started_at(pid: int) -> str:
    """When a process started, in clock ticks since boot: a number that a later process of the same id does not have."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def state_file() -> Path:
    """The file of this engine's API servers, in a folder that only this user can read."""
    parent = os.getppid()
    folder = Path(tempfile.gettempdir()) / f"slipstream-vllm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder / f"adapters-{parent}-{started_at(parent)}.json"


class StateFile:
    """The shared table on disk: read when it has changed, written by replacing it under a lock.

    The lock's file counts the writings. A file's time and inode don't tell two of them apart: both may come again
    within one tick of the clock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._count = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._seen: bytes | None = None
        self._state = State(next=1, adapters={})

    def __del__(self) -> None:
        os.close(self._count)

    def read(self) -> State:
        written = os.pread(self._count, COUNT_BYTES, 0)
        if written != self._seen:
            self._state, self._seen = self._load(), written
        return self._state

    def _load(self) -> State:
        try:
            found: State = json.loads(self.path.read_text())
        except FileNotFoundError:  # not written yet, or cleaned away with other old files: numbers must not begin again
            return copy.deepcopy(self._state)
        return found

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """The state to change; it is written when the block ends well."""
        fcntl.flock(self._count, fcntl.LOCK_EX)
        try:
            state = self._load()
            yield state
            temporary = self.path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(state))
            temporary.replace(self.path)
            written = int.from_bytes(os.pread(self._count, COUNT_BYTES, 0), "little")
            os.pwrite(self._count, (written + 1).to_bytes(COUNT_BYTES, "little"), 0)
        finally:
            fcntl.flock(self._count, fcntl.LOCK_UN)


class SharedCounter:
    """Numbers that no two API servers give twice: the engine core knows an adapter by its number."""

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def inc(self, amount: int) -> int:
        with self._file.change() as state:
            state["next"] += amount
            return state["next"] - 1


class SharedAdapters(MutableMapping[str, "LoRARequest"]):
    """In place of ``OpenAIServingModels.lora_requests``: name → request, alike in each API server."""

    def __init__(self, file: StateFile, make: Callable[..., LoRARequest]) -> None:
        self._file, self._make = file, make
        self._entries: Mapping[str, AdapterEntry] = {}
        self._known: dict[str, LoRARequest] = {}

    def _current(self) -> dict[str, LoRARequest]:
        entries = self._file.read()["adapters"]
        if entries is not self._entries:
            self._entries = entries
            self._known = {name: self._request(name, e) for name, e in entries.items()}
        return self._known

    def _request(self, name: str, entry: AdapterEntry) -> LoRARequest:
        made = self._make(lora_name=name, lora_int_id=entry["id"], lora_path=entry["path"])
        if entry["base"] is not None:
            made.base_model_name = entry["base"]
        return made

    def __getitem__(self, name: str) -> LoRARequest:
        return self._current()[name]

    def __setitem__(self, name: str, request: LoRARequest) -> None:
        entry = AdapterEntry(id=request.lora_int_id, path=request.lora_path, base=request.base_model_name)
        with self._file.change() as state:
            there = state["adapters"].get(name)
            if there is not None and there["id"] != entry["id"]:
                raise ValueError(f"the adapter '{name}' was loaded by another API server meanwhile")
            state["adapters"][name] = entry

    def __delitem__(self, name: str) -> None:
        with self._file.change() as state:
            del state["adapters"][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._current())

    def __len__(self) -> int:
        return len(self._current())

    def keys(self) -> KeysView[str]:
        return self._current().keys()

    def values(self) -> ValuesView[LoRARequest]:
        return self._current().values()

    def items(self) -> ItemsView[str, LoRARequest]:
        return self._current().items()


def sharing(original: Callable[..., None]) -> Callable[..., None]:
    """``OpenAIServingModels.__init__``: with several API servers, the shared table replaces the dictionary."""

    @functools.wraps(original)
    def init(self: object, engine_client: object, *args: object, **kwargs: object) -> None:
        original(self, engine_client, *args, **kwargs)
        config = getattr(getattr(engine_client, "vllm_config", None), "parallel_config", None)
        if os.environ.get(ROUTES_VARIABLE) != "1" or getattr(config, "_api_process_count", 1) < 2:
            return
        from vllm.lora.request import LoRARequest

        file = StateFile(state_file())
        self.lora_requests = SharedAdapters(file, LoRARequest)  # type: ignore[attr-defined]
        self.lora_id_counter = SharedCounter(file)  # type: ignore[attr-defined]
        log.info("adapters are shared by the API servers through %s", file.path)

    return init


def attach_hello(app: FastAPI) -> None:
    """``GET /slipstream``: the proxy asks once whether the plugin is there, which packed form it writes, on what kind
    of device the model runs, what is sampled with where a call says nothing, and how responses say tools back.
    """
    from vllm.platforms import current_platform

    fields = response_fields()

    async def hello() -> dict[str, object]:
        said = {"packed": packing.PACKING_VERSION, "device": current_platform.device_type, "responses": fields}
        return {**said, **sampling(getattr(app.state, "openai_serving_chat", None))}

    app.add_api_route(HELLO_PATH, hello, methods=["GET"], include_in_schema=False)


def response_fields() -> dict[str, list[str]]:
    """Name in ``RESPONSE_MODELS`` → its fields, in their order. vLLM says tools and calls back as models of the openai
    package that is installed beside it. What it lacks is left out.
    """
    found: dict[str, list[str]] = {}
    for name, path in RESPONSE_MODELS.items():
        try:
            model = resolve(f"openai.types.responses.{path}")
            found[name] = [field.alias or of for of, field in model.model_fields.items()]
        except (ImportError, AttributeError):
            continue
    return found


def sampling(chat: Any) -> dict[str, object]:
    """``sampling``: the parameters of a chat completion that sets none. ``logprobs_mode``: vLLM's. ``chat``: vLLM's
    handler. Empty: they cannot be told.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    try:
        asked = ChatCompletionRequest(messages=[{"role": "user", "content": "a"}], model="a")
        made = asked.to_sampling_params(1, chat.default_sampling_params)
        own = {name: float(getattr(made, name)) for name in SAMPLING_FIELDS}
        return {"sampling": own, "logprobs_mode": str(chat.model_config.logprobs_mode)}
    except (AttributeError, TypeError, ValueError):
        return {}


def serving_routes(routes: ModuleType) -> Callable[[FastAPI], None]:
    """``attach_router``: vLLM attaches the routes only where its own variable is set, which it refuses beside several
    API servers.
    """
    original: Callable[[FastAPI], None] = routes.attach_router

    @functools.wraps(original)
    def attach_router(app: FastAPI) -> None:
        attach_hello(app)
        adapter_slots.attach(app)
        if os.environ.get(ROUTES_VARIABLE) != "1":
            original(app)
            return
        names = vars(routes)
        environment = names["envs"]
        # What the function asks, for this one call.
        names["envs"] = SimpleNamespace(VLLM_ALLOW_RUNTIME_LORA_UPDATING=True)
        try:
            original(app)
        finally:
            names["envs"] = environment

    return attach_router


def install() -> None:
    """Put these in vLLM's place. ``versions.unsupported()`` was asked before."""
    models = resolve("vllm.entrypoints.openai.models.serving:OpenAIServingModels")
    models.__init__ = sharing(models.__init__)
    routes = importlib.import_module("vllm.entrypoints.serve.lora.api_router")
    routes.attach_router = serving_routes(routes)  # type: ignore[attr-defined]
