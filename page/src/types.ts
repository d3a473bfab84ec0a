// What the control API answers, by its own description (`api-types.ts`, which `make page` writes). By hand: what it only
// calls JSON.

import type { components } from "./api-types";

type S = components["schemas"];

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface EngineState {
  url: string;
  ok: boolean;
  error: string | null;
  loaded?: string[];
}

export type Message = Json;

/** Runs of one tag or task. */
/** A side measure, with the direction that is bad. */
export type Action = "promote" | "demote" | "freeze" | "unfreeze";

/** How the gate's evidence of a version moved, as the store keeps it. */
export interface TrainingEvent {
  id: number;
  at: number;
  kind: string;
  data: JsonObject;
}


export type FunnelLine = S["FunnelLine"];
export type Sidecar = S["Sidecar"];
export type Agreement = S["JudgeAgreement"];
export type JudgeCopy = S["JudgeStatus"];
export type Judging = S["JudgingStatus"];
export type Status = S["Status"];
export type Tenant = S["TenantStatus"];
export type Tenants = S["TenantList"];
export type Episode = S["Episode"];
export type EpisodePage = S["EpisodePage"];
export type Call = S["CallRecord"];
export type Reward = S["Reward"];
export type Lineage = S["Lineage"];
export type EpisodeDetail = S["EpisodeDetail"];
export type GateGroup = S["GateGroup"];
export type GateGuard = S["GateGuard"];
export type AdapterEffect = S["AdapterEffect"];
export type GateReport = S["GateReport"];
export type GateReading = S["GateReading"];
export type GateEvidence = S["GateEvidence"];
export type Adapter = S["Adapter"];
export type ReplayVerdict = S["ReplayVerdict"];
export type ReplayPair = S["ReplayPair"];
export type ReplayShown = S["ReplayShown"];
export type CaseSet = S["CaseSet"];
export type CaseSets = S["CaseSets"];
export type CasePage = S["CasePage"];
export type AdapterList = S["AdapterList"];
export type GroupSummary = S["GroupSummary"];
export type GroupPage = S["GroupPage"];
export type RunJudgement = S["RunJudgement"];
export type GroupRun = S["GroupRun"];
export type BatchSummary = S["BatchSummary"];
export type GroupDetail = S["GroupDetail"];
export type BatchDetail = S["BatchDetail"];
export type Token = S["Token"];
export type CallTokens = S["CallTokens"];
export type LearningAnswer = S["Learning"];
export type TaskRuns = S["TaskRuns"];
export type TaskStanding = S["TaskStanding"];
export type MeasureMean = S["MeasureMean"];
export type BehaviourChange = S["BehaviourChange"];
export type BehaviourAnswer = S["Behaviour"];
export type TaskTable = S["TaskTable"];
export type CostLine = S["CostLine"];
export type Costs = S["CostTable"];
export type Comments = S["Comments"];
export type LabelCases = S["LabelCases"];
export type Paused = S["Paused"];
export type Annotations = S["Annotations"];
export type AuditEntry = S["AuditEntry"];
export type AuditPage = S["AuditPage"];
export type Plugin = S["PluginStatus"];
export type PluginBlock = S["PluginBlock"];
export type PluginView = S["PluginView"];
