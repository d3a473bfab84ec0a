// What the control API answers, as far as the page reads it (`/slipstream/openapi.json` says all of it).

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface FunnelLine {
  stage: string;
  cause: string;
  count: number;
  text: string;
  fix: string | null;
  blocks: boolean;
}

export interface Sidecar {
  name: string;
  state: "running" | "silent" | "restarting" | "down" | "ended";
  since: number;
  starts: number;
  exit_code: number | null;
  reason: string | null;
}

export interface Agreement {
  value: number | null;
  pairs: number;
}

export interface JudgeCopy {
  worker: string;
  names: string[];
  model: string | null;
  function: string | null;
  concurrency: number;
  working: number;
  groups_per_minute: number;
  seconds_per_group: number | null;
  cost_per_group: number | null;
  spread: number | null;
  scored: number;
  failed: number;
  postponed: number;
  lost: number;
  last_error: string | null;
  waits_for: string | null;
  waits_until: number | null;
  at: number;
  spent: {
    calls: number;
    tokens: number;
    dollars: number;
    tokens_limit: number | null;
    dollars_limit: number | null;
    calls_per_minute_limit: number | null;
    resets_at: number;
  };
  audit: Agreement;
}

export interface Judging {
  judges: JudgeCopy[];
  backlog: { groups: number; oldest_seconds: number | null; newest_seconds: number | null; parked: number };
  seconds_behind: number | null;
  agent: Agreement;
  human: Agreement;
}

export interface EngineState {
  url: string;
  ok: boolean;
  error: string | null;
  loaded?: string[];
}

export interface Status {
  version: string;
  /** Of this page's key. */
  scopes?: string[];
  started: number;
  models: Record<string, string>;
  /** Trained model → who gets the canary that is on trial. */
  canaries?: Record<string, string>;
  /** Of each trained model: is it better than its base, and how sure is that. */
  headlines: Record<string, string>;
  engines: EngineState[];
  episodes: Record<string, number>;
  groups: Record<string, number>;
  calls: number;
  capture_lost: number;
  ingest_lag_seconds: number;
  steps: number;
  last_step: number | null;
  untrainable: Record<string, number>;
  funnel: { lines: FunnelLine[] };
  batch: { batches?: Record<string, number>; missing?: Record<string, number> };
  judging: Judging;
  sidecars: Sidecar[];
}

export interface Episode {
  id: string;
  key: string;
  task: string | null;
  split: "train" | "eval" | "off";
  tags: Record<string, string>;
  model: string;
  adapter: string | null;
  arm: "live" | "control" | "best" | "candidate";
  state: "open" | "done" | "deleted";
  started: number;
  ended: number | null;
  calls: number;
  prompt_tokens: number;
  completion_tokens: number;
  reward: number | null;
  group: string | null;
  /** It failed: in none of its calls a model said anything, and this is the latest one's error. */
  error?: string | null;
}

export interface EpisodePage {
  episodes: Episode[];
  next: string | null;
  /** How far back a search has come, seconds since the epoch; null: to the end. */
  searched_to?: number | null;
}

export type Message = Json;

export interface Call {
  id: string;
  episode: string;
  number: number;
  at: number;
  seconds: number;
  dialect: string;
  model: string;
  adapter: string | null;
  trained: string | null;
  status: number;
  outcome: "ok" | "aborted" | "error" | "superseded";
  trainable: boolean;
  untrainable_reason: string | null;
  /** `main`, `subagent`, `title`, `summary`, `compaction`, `side`, or what its client said. */
  kind?: string;
  sampling: JsonObject;
  messages: Message[];
  tools: Json[];
  reply: Message[];
  prompt_tokens: number;
  completion_tokens: number;
  prompt_ids: number[] | null;
  completion_ids: number[][] | null;
  logprobs: number[][] | null;
  finish_reason: string | null;
  error: string | null;
  extends: string | null;
  /** What it begins with: so many messages (and the reply) of an earlier call. */
  prefix?: { call: string; messages: number; tokens: number; tools: boolean } | null;
}

export interface Reward {
  name: string;
  value: number;
  source: string;
  call: string | null;
  reason: string | null;
  at: number;
  adapter: string | null;
  meta: JsonObject;
}

export interface Lineage {
  batch: string;
  outcome: "trained" | "skipped";
  adapter: string | null;
  advantage: number | null;
}

export interface EpisodeDetail extends Episode {
  call_list: Call[];
  rewards: Reward[];
  advantage: number | null;
  batches: string[];
  trained_adapters: string[];
  lineage: Lineage[];
  next_call?: number | null;
}

/** Runs of one tag or task. */
export interface GateGroup {
  name: string;
  difference: number | null;
  trial_episodes: number;
  control_episodes: number;
  evidence: number;
}

/** A side measure, with the direction that is bad. */
export interface GateGuard {
  name: string;
  bad: "up" | "down";
  control: number | null;
  trial: number | null;
  trial_episodes: number;
  control_episodes: number;
  evidence: number;
}

export type Action = "promote" | "demote" | "freeze" | "unfreeze";

export interface AdapterEffect {
  adapter: string;
  action: Action;
  says: string[];
}

export interface GateReport {
  decision: "undecided" | "accept" | "rollback";
  control: string;
  best: string;
  difference: number | null;
  lower: number | null;
  upper: number | null;
  own_episodes?: number;
  own_difference?: number | null;
  groups?: GateGroup[];
  guards?: GateGuard[];
  trial_episodes: number;
  control_episodes: number;
  evidence: number;
  threshold: number;
  drift_evidence: number;
  control_share: number;
  /** Of a canary: who gets it now, and what leads to the next share. */
  gets?: string;
  episodes_left: number | null;
  reason: string;
  fix: string | null;
  waiting: string[];
}

export interface GateReading {
  outcome: number;
  at: number;
  trial_episodes: number;
  control_episodes: number;
  difference: number | null;
  lower: number | null;
  upper: number | null;
  evidence: number;
  drift_difference: number | null;
  drift_evidence: number;
}

/** How the gate's evidence of a version moved, as the store keeps it. */
export interface GateEvidence {
  adapter: string;
  threshold: number;
  readings: GateReading[];
}

export interface Adapter {
  name: string;
  model: string;
  version: number;
  state: "loading" | "candidate" | "live" | "retired" | "rolled_back" | "refused";
  reason: string | null;
  created: number;
  decided: number | null;
  path: string;
  parent: string | null;
  step: number | null;
  batches: string[];
  episodes: number;
  loaded: boolean;
  files?: boolean;
  accepted: boolean;
  best: boolean;
  kept_from?: Record<string, string>;
  given?: string[];
  frozen?: boolean | null;
  gate: GateReport | null;
  replay: ReplayVerdict | null;
  meta: JsonObject;
}

export interface ReplayVerdict {
  outcome: "running" | "passed" | "refused" | "undecided";
  reason: string;
  control: string;
  sets: { name: string; version: number; cases: number; missing: number }[];
  questions: { set: string; question: string; verdict: "worse" | "better" | "undecided"; cases: number; candidate: number; control: number; visible: number }[];
  tokens: number;
}

export interface ReplayPair {
  set: string;
  episode: string;
  key: string;
  call: number;
  question: string;
  candidate: number;
  control: number;
  prompt: string;
  candidate_reply: string;
  control_reply: string;
}

export interface ReplayShown {
  adapter: string;
  replay: ReplayVerdict | null;
  worst: ReplayPair[];
  limits: string;
}

export interface CaseSet {
  name: string;
  version: number;
  cases: number;
  changed: number;
}

export interface CaseSets {
  sets: CaseSet[];
}

export interface CasePage {
  set: CaseSet;
  version: number;
  cases: { key: string; episode: string; task: string | null; tags: Record<string, string>; reward: number | null; calls: number; since: number; added: number }[];
  next: string | null;
}

export interface AdapterList {
  adapters: Adapter[];
  live: Record<string, string>;
}

export interface TrainingEvent {
  id: number;
  at: number;
  kind: string;
  data: JsonObject;
}

export interface GroupSummary {
  id: string;
  kind: "task" | "like" | "window";
  key: string;
  task: string | null;
  model: string;
  split: string;
  state: string;
  cause: string | null;
  episodes: number;
  rewarded: number;
  mean: number | null;
  low: number | null;
  high: number | null;
  created: number;
  completed: number | null;
  ready_at: number | null;
  batch: string | null;
  step: number | null;
  adapter: string | null;
  attempts: number;
  parked: boolean;
}

export interface GroupPage {
  groups: GroupSummary[];
  next: string | null;
}

export interface RunJudgement {
  name: string;
  source: string;
  value: number;
  reason: string | null;
  votes: number[];
  at: number;
  meta: JsonObject;
}

export interface GroupRun {
  episode: Episode;
  rewards: Reward[];
  judgements: RunJudgement[];
  trained_reward: number | null;
  advantage: number | null;
}

export interface BatchSummary {
  id: string;
  model: string;
  state: string;
  created: number;
  step: number | null;
  adapter: string | null;
  reason: string | null;
}

export interface GroupDetail extends GroupSummary {
  runs: GroupRun[];
  batches: BatchSummary[];
}

export interface BatchDetail extends BatchSummary {
  groups: string[];
  episodes: { episode: string; key: string; group: string; reward: number | null; advantage: number | null }[];
}

export interface Token {
  id: number;
  text: string | null;
  logprob: number | null;
  trained: boolean;
  masked: string | null;
  advantage: number | null;
  gap: number | null;
}

export interface CallTokens {
  call: string;
  trainable: boolean;
  untrainable_reason: string | null;
  prompt: Token[];
  prompt_left_out: number;
  choices: Token[][];
  tokenizer: string | null;
  no_text: string | null;
  advantage: number | null;
  batch: string | null;
  step: number | null;
  gap_mean: number | null;
  gap_max: number | null;
}

export interface LearningAnswer {
  points: {
    series: string | null;
    adapter: string | null;
    version: number | null;
    start: number;
    end: number;
    n: number;
    mean: number;
    low: number;
    high: number;
    success: number;
    success_low: number;
    success_high: number;
  }[];
  bucket: number | null;
  success_from: number;
  left_out: number;
}

export interface TaskRuns {
  n: number;
  mean: number;
  low: number;
  high: number;
  calls: number;
  tokens: number;
}

export interface TaskStanding {
  task: string;
  model: string;
  name: string;
  base: TaskRuns | null;
  now: TaskRuns | null;
  difference: number | null;
  low: number | null;
  high: number | null;
  worst: { key: string; id: string; reward: number }[];
}

export interface MeasureMean {
  n: number;
  mean: number;
  low: number;
  high: number;
}

export interface BehaviourChange {
  measure: string;
  base: MeasureMean;
  version: MeasureMean;
  difference: number;
  low: number;
  high: number;
  runs: { key: string; id: string; value: number }[];
}

export interface BehaviourAnswer {
  adapter: string;
  base: string;
  tasks: number;
  latest: number;
  changes: BehaviourChange[];
  pairs: { task: string; base: string; version: string }[];
}

export interface TaskTable {
  tasks: TaskStanding[];
  left_out: number;
  latest: number;
}

export interface CostLine {
  name: string | null;
  episodes: number;
  calls: number;
  prompt_tokens: number;
  completion_tokens: number;
  serving_seconds: number;
  training_seconds: number;
  dollars: number | null;
  judge_tokens: number;
}

export interface Costs {
  lines: CostLine[];
  total: CostLine;
  left_out: number;
}

export interface Comments {
  comments: { id: string; at: number; by: string | null; text: string | null; to: string | null }[];
  assigned: string | null;
}

export interface LabelCases {
  cases: { episode: Episode; uncertainty: number; why: string; assigned: string | null; rewards: Reward[] }[];
  looked_at: number;
  labelled: number;
  agreement: { runs: number; people: number; pairs: number; same: number; low: number; high: number; distance: number } | null;
}

export interface Paused {
  paused: boolean;
  since: number | null;
  by: string | null;
  reason: string | null;
}

export interface Annotations {
  annotations: { id: number; at: number; kind: string; text: string; by: string | null }[];
}

export interface AuditEntry {
  id: string;
  at: number;
  key: string | null;
  name: string | null;
  action: string;
  target: string;
  detail: JsonObject;
}

export interface AuditPage {
  entries: AuditEntry[];
  next: string | null;
}

export interface Plugin {
  name: string;
  text: string;
  enabled: boolean;
  error: string | null;
  errors: number;
  views: { [name: string]: string };
}

export interface PluginBlock {
  kind: "text" | "table" | "line";
  title: string;
  text: string;
  columns: string[];
  rows: Json[][];
  points: [number, number][];
}

export interface PluginView {
  title: string;
  blocks: PluginBlock[];
}
