"""What an action by hand would do, in sentences: it is done to a copy of the registry."""

from __future__ import annotations

from slipstream.contract import Action, Adapter, AdapterState
from slipstream_proxy.control.adapters.changes import StateChanges, made_from
from slipstream_proxy.control.adapters.registry import AdapterRegistry

S = AdapterState


def effect_of(before: AdapterRegistry, adapter: Adapter, action: Action, group: str | None = None) -> list[str]:
    """Raises ``Problem`` where it cannot be done."""
    after = before.copy()
    changes = StateChanges(after)
    for change in changes.by_hand(adapter, action, None, group):
        after.put(change.changed)
    now = after.items[adapter.name]
    if waits := action == "promote" and now.state == S.LOADING:  # and when it is loaded
        after.put(changes.accept_by_hand(now, now.reason).changed)
    if group is not None:
        return _said_of_group(after, adapter.model, group)
    name, says = adapter.name, []
    if action in ("freeze", "unfreeze"):
        says = _said_of_freeze(after, now, action == "freeze")
    elif action == "promote":
        says = [f"New runs get {name}, without a trial{', as soon as it is loaded' if waits else ''}."]
        if adapter.state == S.LIVE:
            says = [f"{name} is live already."]
        elif adapter.anew:
            says.append(f"It was taken back to be made anew: {adapter.reason}.")
    elif adapter.state == S.LOADING:
        says = [f"{name} waits: it is taken back before new runs get it."]
        if (gets := after.live(adapter.model)) != before.live(adapter.model):
            says.append(f"New runs get {gets}.")
    else:
        says = [f"{name} is taken back.", f"New runs get {after.live(adapter.model)}."]
        says.append("Running episodes keep it until they end.")
    says += [said for a in before.items.values() if (said := _said_of_other(a, after.items[a.name], name))]
    if action == "promote" and adapter.kept_from and not after.items[name].kept_from:
        says.append(f"It goes to {', '.join(adapter.kept_from)} again, too.")
    rest = [a for a in after.in_state(S.LOADING) if a.model == adapter.model and not a.forced]
    if action != "freeze" and rest:
        says.append(f"{max(rest, key=lambda a: a.version).name} waits, and can be tried then.")
    return says


def _said_of_group(after: AdapterRegistry, model: str, group: str) -> list[str]:
    gets = after.kept_from(model).get(group, after.live(model))
    says = [f"New runs of {group} get {gets}.", "All other runs get what they get now."]
    served = after.served(model)
    if served is not None and group in served.given:
        says.append(f"The gate takes {served.name} back for that group no more.")
    return says


def _said_of_freeze(after: AdapterRegistry, adapter: Adapter, freeze: bool) -> list[str]:
    model, tried = adapter.model, after.of(adapter.model, S.CANDIDATE)
    held = after.frozen(model)
    if tried is None:
        newer = "Newer versions wait until somebody unfreezes, promotes or demotes it."
        return [f"{adapter.name} stays live.", newer if freeze else "Newer versions are tried again."]
    if freeze and held:
        return [f"{tried.name} is not accepted.", f"Newer versions wait until somebody decides on {adapter.name}."]
    if freeze or held:
        on = "goes on, because it was unfrozen" if freeze else "stays frozen"
        return [f"{tried.name}, which is on trial, {on} by hand."]
    decides = "A person" if after.config.gate.trial == "manual" else "The gate"
    says = [f"{decides} decides on {tried.name} again."]
    return [*says, "No guard freezes it any more."] if tried.name == adapter.name else says


def _said_of_other(was: Adapter, now: Adapter, name: str) -> str | None:
    """What becomes of an adapter that the action does not name."""
    if was.name == name or now.state in (was.state, S.LIVE):
        return None
    if was.state == S.LIVE:
        return f"{was.name}, which is live, is retired."
    if (now.reason or "").startswith(made_from("")[:9]):
        return f"{was.name} was made from it, and is dropped."
    return f"The trial of {was.name} ends: it is {'taken back' if now.state == S.ROLLED_BACK else 'retired'}."
