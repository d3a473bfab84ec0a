"""Adapters, and where they stand at the gate."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints, model_validator

from slipstream.contract.base import Finite, Id, Model
from slipstream.contract.names import NamedEpisode

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as ``--max-lora-rank``. An adapter may have any rank up to that."""


def check_lora_rank(rank: object, max_rank: int) -> str | None:
    """Why vLLM would refuse an adapter of this rank (``max_rank``: ``engine.max_lora_rank``), or None."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        return f"r = {rank!r} is not a rank: an integer from 1 on is"
    return f"rank {rank} is above engine.max_lora_rank {max_rank}" if rank > max_rank else None


class AdapterState(StrEnum):
    LOADING = "loading"
    CANDIDATE = "candidate"
    """In the engine, the gate has not decided."""
    LIVE = "live"
    RETIRED = "retired"
    """Was live, a later one is."""
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


SERVED_STATES = frozenset((AdapterState.LIVE, AdapterState.CANDIDATE))
"""Of an adapter that agents meet."""
Verdict = Literal["worse", "better", "undecided"]
"""What a comparison with the accepted version says."""


def folder_of(adapter: str) -> str:
    """The folder of an adapter's name. A model may be called as on a hub (``Qwen/Qwen3-4B``)."""
    return adapter.replace("/", "--")


class TrainedOn(Model):
    """An episode that a version was trained on without a lease, from a file."""

    key: str
    episode: NamedEpisode
    group: Id | None = None
    """What the trainer may train on once more in place of the version. None: it was not learned from its rewards as
    groups are (`slipstream distill`).
    """
    reward: Finite | None = None


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class AdapterIn(Model):
    """``POST adapters``: a folder under ``adapters.dir`` (a multipart upload of the files makes that folder itself)."""

    path: str
    """Relative to ``adapters.dir``. The name is the folder's: ``<model>@<n>``, where ``--`` may stand for a ``/``."""
    model: str | None = None
    step: int | None = None
    parent: str | None = None
    batches: list[Id] = Field(default_factory=list)
    episodes: list[TrainedOn] = Field(default_factory=list)
    """Where there are no batches, what it was trained on: they become a batch, so that forgetting finds the version."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    learner: Id | None = None
    """The token of the trainer that learns for the model. Where another has taken over, the version is refused."""
    sha256: Sha256 | None = None
    """Of the weights file. A folder with other weights is not taken for this version. In an upload without the file:
    of the one that ``PUT adapters/uploads/SHA256`` brought.
    """


class AdapterTrialIn(Model):
    """``POST adapters/try``: a folder under ``adapters.dir`` that is to be no version. Its name begins so. Or an upload
    of the files, as of a version.
    """

    path: Annotated[str, StringConstraints(pattern=r"^\.tmp-[A-Za-z0-9._@~-]{1,160}$")]
    sha256: Sha256 | None = None


class UploadState(Model):
    """``GET`` and ``PUT adapters/uploads/SHA256``: a large weights file comes in parts."""

    bytes: int
    """That have come. The next part begins there."""


class AdapterTrial(Model):
    """Whether the engines take an adapter and answer otherwise with it."""

    tried: bool
    """False: no engine is up that takes adapters."""
    reason: str | None = None
    """Why it would be refused. None: it would not."""


class GateGroup(Model):
    """What the gate knows about the runs of one tag or task."""

    name: str
    """``tag.NAME=VALUE`` or ``task=NAME``."""
    difference: float | None = None
    """As ``GateReport.difference``, of these runs alone."""
    trial_episodes: int = 0
    control_episodes: int = 0
    evidence: float = 0.0
    """That they lose more than a tenth of the rewards' range. It is a part of ``GateReport.evidence`` unless
    ``gate.group_verdict`` is ``say``.
    """


class GateGuard(Model):
    """A side measure of runs (``gate.guards``): its means, in its own units, on trial and with the control."""

    name: str
    bad: Literal["up", "down"]
    """The direction that is bad."""
    control: float | None = None
    trial: float | None = None
    """None: no run of an arm has it."""
    trial_episodes: int = 0
    control_episodes: int = 0
    evidence: float = 0.0
    """That it is worse by more than a tenth of its range. At ``GateReport.threshold`` ``gate.guard_action`` is done."""


class GateRatings(Model):
    """How many runs have a reward, where not all have one. It decides nothing: a person is asked."""

    control: float
    trial: float
    """Shares."""
    control_episodes: int
    trial_episodes: int
    """Runs with or without a reward that these are of."""
    evidence: float = 0.0
    """That the two differ, either way. At ``GateReport.threshold`` the report's ``reason`` and ``fix`` say so."""


class GateFigures(Model):
    """A trial's figures."""

    difference: float | None = None
    """Mean reward on trial minus that of the control, in reward units and clipped to the usual range of rewards."""
    lower: float | None = None
    """The difference is between ``lower`` and ``upper`` with probability 1 - 2 alpha, at any time. None: not known yet.
    """
    upper: float | None = None
    """Below 0 exactly when the evidence reaches its threshold: the two are one calculation."""
    trial_episodes: int = 0
    """Runs that ``difference`` is of: of all versions on trial since the last verdict."""
    control_episodes: int = 0
    evidence: float = 0.0
    """Against what is served. At the threshold it is taken back."""
    drift_difference: float | None = None
    """Mean reward of what is served minus that of ``best``, in reward units."""
    drift_evidence: float = 0.0
    """The part of ``evidence`` that says "worse than ``best``"."""


class GateReport(GateFigures):
    """What the gate knows about the version that new episodes get, compared with the last accepted one."""

    decision: Literal["undecided", "accept", "rollback"] = "undecided"
    control: str = ""
    """What the version is compared with, and a rollback goes back to. In a verdict on a slow slide: ``best``."""
    best: str = ""
    """The version that no later one was shown to beat. A slow slide is measured against it."""
    own_episodes: int = 0
    """Runs of this version itself that were counted."""
    own_difference: float | None = None
    """As ``difference``, of these runs alone. None: it has none, or the control has none."""
    timed_out: int = 0
    """Those of them that had no reward before the deadline."""
    threshold: float = 100.0
    """Of ``evidence``."""
    control_share: float = 0.0
    """Share of new episodes on the control now. It grows when there is suspicion."""
    best_share: float = 0.0
    trial_share: float = 0.0
    """Canary: share of new runs on the version on trial now; in the stage of ``gate.first`` of those who go first."""
    stage: int | None = None
    """Canary: where ``gate.plan`` stands, from 1 on. None: there is no plan, or nothing is on trial."""
    gets: str = ""
    """Canary: who gets the version on trial now, and what leads to the plan's next stage, in a sentence."""
    episodes_left: int | None = None
    """New runs, of all versions, until a verdict is likely. None: it cannot be said; ``reason`` says why."""
    reason: str = ""
    """Why there is no verdict yet, or what decided, in a sentence."""
    fix: str | None = None
    """What a user can do about it."""
    waiting: list[str] = Field(default_factory=list)
    """Newer versions that wait for the verdict (``gate.pace``)."""
    groups: list[GateGroup] = Field(default_factory=list)
    """Groups of runs that are looked at by themselves (``gate.by``), at most eight: those with the most evidence first.
    """
    guards: list[GateGuard] = Field(default_factory=list)
    ratings: GateRatings | None = None
    """None: an arm has no run, or nearly all runs have a reward."""
    missed: float | None = None
    """A larger loss of mean reward beside the control would have been seen with 95 %, in reward units: of all versions
    on trial since the last verdict together. None: not known.
    """
    best_episodes: int = 0
    """Runs that ``best`` got to be compared with, since it was last compared anew."""


class GateReading(GateFigures):
    """A moment of a trial: its figures as they were after an episode."""

    outcome: int
    """The number of the finished episode after which it was read."""
    at: float


class GateEvidence(Model):
    """How the gate's evidence of a version moved, oldest first: a bounded number of readings, evenly chosen."""

    adapter: str
    threshold: float
    """Of ``evidence``: there it is taken back."""
    readings: list[GateReading]


class ReplaySet(Model):
    """A set of cases that a version was replayed on."""

    name: str
    version: int
    cases: int
    """Those that were compared."""
    missing: int = 0
    """Those without an answer."""


class ReplayQuestion(Model):
    """What a replay says about one question, over one set."""

    set: str
    question: str
    """``guards``, ``tool calls``, ``judge``, or the function's name."""
    verdict: Verdict
    cases: int
    candidate: float
    control: float
    """Mean scores, from 0 to 1."""
    visible: float
    """About the smallest loss that would have been seen."""
    evidence: float
    """That the version is worse. At ``threshold`` it is refused."""
    threshold: float


class ReplayVerdict(Model):
    """A version on recorded steps, beside the accepted one (``gate.mode = "replay"``). No agent met it meanwhile."""

    outcome: Literal["running", "passed", "refused", "undecided"]
    reason: str = ""
    control: str = ""
    sets: list[ReplaySet] = Field(default_factory=list)
    questions: list[ReplayQuestion] = Field(default_factory=list)
    tokens: int = 0
    """That it cost."""
    exact: float | None = None
    """Share of the steps that the engine got as the recorded token ids; the others were asked by messages."""
    began: float = 0.0
    ended: float | None = None
    worst: str | None = None
    """The set of cases with the steps where it lost most, both sides' replies side by side."""

    @property
    def suspicion(self) -> float | None:
        """Growth of the strongest evidence against a version that passed. None: nothing is known."""
        known = self.outcome == "passed" and self.questions
        return max(q.evidence for q in self.questions) if known else None


class ReplayPair(Model):
    """A step where a version lost: the recorded prompt's end, and a reply of each side."""

    set: str
    episode: str
    key: str
    call: int
    question: str
    candidate: float
    control: float
    """Mean scores of the case, from 0 to 1."""
    prompt: str
    candidate_reply: str
    control_reply: str


class ReplayShown(Model):
    """``GET adapters/{v}/replay``: the verdict with its worst cases side by side."""

    adapter: str
    replay: ReplayVerdict | None
    worst: list[ReplayPair] = Field(default_factory=list)
    limits: str = ""
    """What a replay of steps cannot know."""


class Adapter(Model):
    name: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}@[1-9][0-9]{0,8}$")]
    """``<model>@<n>``; immutable, never used again."""
    model: str
    version: int
    state: AdapterState
    reason: str | None = None
    """Why it has this state: why it was refused, or what the gate saw."""
    created: float
    decided: float | None = None
    path: str
    """The folder right under ``adapters.dir``: it follows from the name, whatever a list says."""
    parent: str | None = None
    step: int | None = None
    batches: list[str] = Field(default_factory=list)
    episodes: int = 0
    """Open episodes pinned to it."""
    loaded: bool = False
    files: bool | None = None
    """Whether its files are there (``adapters.keep`` says how many stay): without them it cannot be promoted. None:
    nobody looked."""
    forced: bool = False
    """A person promoted it: it goes live as soon as it is loaded, without the gate."""
    accepted: bool = False
    """It was live once: a rollback may go back to it."""
    anew: bool = False
    """It, or what it was made from, was trained on episodes that it should not have been, and was taken back for that:
    training goes on from before it. What it answered may be trained on.
    """
    kept_from: dict[str, str] = Field(default_factory=dict)
    """Group of runs (``tag.NAME=VALUE``, ``task=NAME``) for which alone it was taken back → the adapter that the
    group's new runs get. Versions that are made from it take this over.
    """
    given: list[str] = Field(default_factory=list)
    """Groups of runs that a person gave it back to: no loss of such a group alone takes it back again."""
    frozen: bool | None = None
    """True: a person froze it. False: a person unfroze it, and no guard freezes it any more. None: the guards decide.
    """
    best: bool = False
    """No later version was shown to beat it. Where none of a model has this, the base model is the best one."""
    sha256: str | None = None
    """The hash of its weights file, in hex."""
    scales_sha256: str | None = None
    """The hash of each module's scale, as its configuration gives it: the same weights with another alpha are another
    policy. None: it came before this was noted, and its weights alone are compared.
    """
    engine_path: str | None = None
    """Where the proxy that it came to says that vLLM finds its folder. None: only one proxy uses this store."""
    gate: GateReport | None = None
    """What the gate saw so far."""
    replay: ReplayVerdict | None = None
    """How it did on recorded steps before anybody met it. None: it was not replayed."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """What its maker wrote about it."""

    @property
    def failed_replay(self) -> bool:
        return self.replay is not None and self.replay.outcome == "refused"

    @model_validator(mode="before")
    @classmethod
    def _place(cls, data: object) -> object:
        """The folder follows from the name: a path that somebody wrote is never believed. What an older gate said of it
        may have had other fields.
        """
        if not isinstance(data, dict):
            return data
        if isinstance(name := data.get("name"), str):
            data = data | {"path": folder_of(name)}
        if isinstance(gate := data.get("gate"), dict):
            data = data | {"gate": {k: v for k, v in gate.items() if k in GateReport.model_fields}}
        return data


def fallen(adapters: Mapping[str, Adapter], name: str | None) -> str | None:
    """The version that was rolled back, failed its replay or is made anew, and that ``name`` is or was made from. None:
    it stands.

    A version that was accepted stands, whatever it was made from. So does what a person promotes (``forced``).
    Proxy and trainer both decide by this alone.
    """
    for made_from in _line(adapters, name):
        a = adapters[made_from]
        if a.forced:
            return None
        if a.anew or a.state == AdapterState.ROLLED_BACK or (a.state == AdapterState.REFUSED and a.failed_replay):
            return a.name
        if a.state == AdapterState.LIVE or a.accepted:
            return None
    return None


def descendants(adapters: Mapping[str, Adapter], names: Collection[str]) -> list[str]:
    """Versions that were made from one of these, directly or not, by version. Those themselves are left out."""
    found = set(names)
    ordered = sorted(adapters.values(), key=lambda a: (a.model, a.version))
    for a in ordered:  # a parent comes before what is made from it
        if a.parent in found:
            found.add(a.name)
    return [a.name for a in ordered if a.name in found and a.name not in names]


def left_behind(adapters: Mapping[str, Adapter], gone: Collection[str], start: str) -> list[str]:
    """Versions that those which are taken back were made from, and that ``start`` does not have in it, as the gate had
    not decided on them: what they learned goes with the others. By version.
    """
    kept, found = {*_line(adapters, start)}, set[str]()
    for name in gone:
        found.update(_line(adapters, name))
    ended = (AdapterState.ROLLED_BACK, AdapterState.REFUSED)
    between = [adapters[name] for name in found - kept - {*gone}]
    return [a.name for a in sorted(between, key=lambda a: a.version) if a.state not in ended and not a.anew]


def _line(adapters: Mapping[str, Adapter], name: str | None) -> Iterator[str]:
    """A version and what it was made from."""
    seen: set[str] = set()
    while name is not None and name not in seen and (a := adapters.get(name)) is not None:
        yield name
        seen.add(name)
        name = a.parent


class AdapterList(Model):
    adapters: list[Adapter]
    live: dict[str, str]
    """Trained model → the adapter (or base model) that new episodes get."""
    room: dict[str, bool] = Field(default_factory=dict)
    """Trained model → whether a version that is registered now goes into the engines at once. If not, it waits there
    for a slot or for the gate.
    """
    forgotten: list[str] = Field(default_factory=list)
    """Batches that no version may be made from: the trainer drops their steps. An episode of each was forgotten before
    a version had it (``store.forget = "retrain"``).
    """


Action = Literal["promote", "demote", "freeze", "unfreeze"]
"""What a person can do with a version."""


RUN_GROUP_PATTERN = r"^(task=|tag\.[^=]+=).+$"
"""``tag.NAME=VALUE`` or ``task=NAME``."""


class GateIn(Model):
    """``POST adapters/{v}/promote``, ``…/demote``, ``…/freeze`` and ``…/unfreeze``."""

    reason: str | None = None
    group: str | None = Field(None, pattern=RUN_GROUP_PATTERN)
    """Promote or demote for the new runs of this group alone: ``tag.NAME=VALUE`` or ``task=NAME``."""


class AdapterKeepIn(Model):
    """``POST adapters/{v}/keep``."""

    seconds: float = Field(60.0, ge=0, le=600)
    """From now on; 0: no longer."""


class AdapterEffect(Model):
    """What an action by hand would do."""

    adapter: str
    action: Action
    says: list[str]
    """One sentence for each thing that would happen."""
