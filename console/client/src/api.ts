// Made by tools/client_types.py from the OpenAPI document of the server; a test keeps it current.

/** JSON whose text is kept as it was sent: numbers of any size and form, white space, order of keys. */
export interface RawJson {
  readonly source: string;
}

export interface AbortReply {
  aborted: number;
  performance: Performance;
}

export interface AbortRequest {
  stages?: string[];
  fence?: number | null;
}

/** `result` is that of the only job, `results` has one for each of `seqs`; null is none. They are not parsed. */
export interface AckRequest {
  node: string;
  seqs: number[];
  lease_ids?: string[] | null;
  result?: unknown;
  results?: unknown[] | null;
}

export interface AppItem {
  app: string;
  version: number | null;
  fence: number;
  stages: number;
  bytes: number;
}

export interface AppList {
  apps: AppItem[];
  next_cursor: string | null;
  performance: Performance;
}

export interface AppReply {
  app: string;
  version: number | null;
  fence: number;
  stages: StageItem[];
  performance: Performance;
}

export interface AppendReply {
  topic: string;
  first_seq: number;
  last_seq: number;
  head_seq: number;
  count: number;
  created: boolean;
  deduped: boolean;
  performance: Performance;
  seqs?: number[];
  warnings?: string[];
}

export interface AppendRequest {
  records: RecordRequest[];
  node?: string | null;
  idempotency_key?: string | null;
  create?: boolean | null;
  config?: ConfigRequest | null;
  disable_backpressure?: boolean | null;
}

export interface AppendedItem {
  first_seq: number;
  last_seq: number;
  head_seq: number;
  created: boolean;
  seqs?: number[];
}

/** One attempt: the answer's status (0: there was none), and when the record is tried again. */
export interface AttemptItem {
  seq: number;
  attempt: number;
  ts: number;
  took_ms: number;
  status: number;
  error: string | null;
  next_ts: number | null;
}

/** A backoff as a request states it. */
export interface BackoffRequest {
  initial_ms?: number;
  factor?: number;
  max_ms?: number;
  jitter?: number;
}

/** The copy in the bucket; `lag_ms`: the age of the oldest synced byte that is not there; on a standby, how old its state is at most. `local_bytes` of packs are on this disk, `remote_bytes` only in the bucket. */
export interface BucketHealth {
  state: "away" | "fenced" | "gap" | "ok";
  term: number;
  lag_ms: number;
  lag_bytes: number;
  local_bytes: number;
  remote_bytes: number;
}

/** `skipped`: seqs that were no jobs of the queue any more. */
export interface CancelReply {
  topic: string;
  cancelled: number;
  skipped: number[];
  ready: number;
  in_flight: number;
  performance: Performance;
}

/** The jobs that are not wanted any more, whatever their state. */
export interface CancelRequest {
  seqs: number[];
}

/** A field of a configuration: its current value and the requested one. */
export interface Change {
  from: unknown;
  to: unknown;
}

/** `count` below `max` means that the queue is (nearly) empty, unless `more` is true. Then the jobs were too large, or the limit that `limited_by` names holds back those that are ready. */
export interface ClaimReply {
  topic: string;
  claimed: ClaimedJob[];
  count: number;
  ready: number;
  performance: Performance;
  more?: boolean;
  limited_by?: "max_in_flight" | "max_in_flight_per_tag" | "rate_per_s" | "rate_per_s_per_tag";
}

export interface ClaimRequest {
  node: string;
  max?: number;
  lease_ms?: number;
  wait_ms?: number;
}

export interface ClaimedJob {
  "$seq": number;
  lease_id: string;
  deadline: number;
  "$ts": number;
  deliveries: number;
  data: RawJson;
  "$node"?: string;
  "$tag"?: string;
  meta?: RawJson;
}

/** An event as a reply shows it: with its extension attributes, and `data` or `data_base64` if it has data. */
export interface CloudEvent {
  specversion: string;
  id: string;
  source: string;
  type: string;
}

/** `topics` is absent for a version below the highest one, whose outcome is not kept. */
export interface CommitReply {
  committed: boolean;
  deduped: boolean;
  version: number;
  performance: Performance;
  topics?: { [key: string]: LandedItem };
}

export interface CommitRequest {
  stages?: string[];
  fence?: number | null;
  create?: boolean;
}

/** Bytes that the data directory takes on its disk, before and after. */
export interface CompactReply {
  bytes_before: number;
  bytes_after: number;
  performance: Performance;
}

/** Fields of a configuration to change. `null` resets an optional field and is refused for the others. */
export interface ConfigPatch {
  type?: "log" | "queue";
  ttl_ms?: number;
  cap_records?: number;
  cap_bytes?: number;
  discard?: "old" | "reject";
  durable?: boolean;
  durability?: "disk" | "ephemeral" | "fsync" | "memory" | "replicated";
  priority?: number | null;
  auto_priority?: boolean;
  auto_create?: boolean;
  idempotency_window_ms?: number;
  dedupe_node?: boolean;
  lease_ms?: number;
  claim_jitter_ms?: number;
  max_deliveries?: number;
  dead_letter?: string | null;
  leases_durable?: boolean;
  retry_backoff?: BackoffRequest | null;
  keep_results_ms?: number;
  max_in_flight?: number | null;
  max_in_flight_per_tag?: number | null;
  rate_per_s?: number | null;
  burst?: number | null;
  rate_per_s_per_tag?: number | null;
  burst_per_tag?: number | null;
  sqs?: SqsRequest | null;
}

/** The configuration as a request states it: every field optional, `null` means absent except for numbers. */
export interface ConfigRequest {
  type?: "log" | "queue" | null;
  ttl_ms?: number;
  cap_records?: number;
  cap_bytes?: number;
  discard?: "old" | "reject" | null;
  durable?: boolean | null;
  durability?: "disk" | "ephemeral" | "fsync" | "memory" | "replicated" | null;
  priority?: number | null;
  auto_priority?: boolean | null;
  auto_create?: boolean | null;
  idempotency_window_ms?: number;
  dedupe_node?: boolean | null;
  lease_ms?: number;
  claim_jitter_ms?: number;
  max_deliveries?: number;
  dead_letter?: string | null;
  leases_durable?: boolean | null;
  retry_backoff?: BackoffRequest | null;
  keep_results_ms?: number;
  max_in_flight?: number | null;
  max_in_flight_per_tag?: number | null;
  rate_per_s?: number | null;
  burst?: number | null;
  rate_per_s_per_tag?: number | null;
  burst_per_tag?: number | null;
  sqs?: SqsRequest | null;
}

export interface ConfiguredReply {
  topic: string;
  created: boolean;
  config: TopicConfig;
  performance: Performance;
  warnings?: string[];
}

/** For all partitions, `partitions` holds the next offset of each; `next_offset` is that of the first. */
export interface ConsumeReply {
  messages: MessageReply[];
  next_offset: number;
  has_more: boolean;
  partitions?: PartitionOffset[];
}

export interface ConsumeRequest {
  topic_id: string;
  group_id?: string | null;
  start?: string | { [key: string]: number } | null;
  limit?: number | null;
  partition_id?: number | string | null;
  all_partitions?: boolean | null;
  timeout_seconds?: number | null;
  member?: string | null;
}

export interface DeleteRequest {
  before_seq?: number;
  match?: string | string[] | null;
  dry_run?: boolean | null;
}

export interface DeletedReply {
  topic: string;
  deleted: number;
  earliest_seq: number;
  head_seq: number;
  count: number;
  bytes: number;
  performance: Performance;
  warnings?: string[];
  dry_run?: boolean;
}

export interface DiffReply {
  topic: string;
  epoch: number;
  records: Record[];
  next_from_seq: number;
  head_seq: number;
  earliest_seq: number;
  caught_up: boolean;
  lag: number;
  tombstone: TombstoneReply | null;
  performance: Performance;
}

/** A `limit` or `max_batch_bytes` of 0 means the default. */
export interface DiffRequest {
  from_seq?: number;
  limit?: number;
  node?: string | string[] | null;
  include_tags?: boolean | null;
  include_meta?: boolean | null;
  wait_ms?: number;
  max_batch_bytes?: number;
  from_ts?: number;
}

export interface DroppedReply {
  topic: string;
  deleted: boolean;
  routers_removed: string[];
  performance: Performance;
  records?: number;
  bytes?: number;
  dry_run?: boolean;
}

/** `config` is the topic's after the change, or what it would be; `evicts`: how many records this removes. */
export interface EditedReply {
  topic: string;
  config: TopicConfig;
  changes: { [key: string]: Change };
  evicts: number;
  dry_run: boolean;
  performance: Performance;
  warnings?: string[];
}

export interface ErrorBody {
  code: string;
  message: string;
  detail?: { [key: string]: unknown };
}

export interface ErrorReply {
  error: ErrorBody;
  performance?: Performance;
}

/** A condition on rows, and what happens to one for which it is not true: `warn`, `drop`, `quarantine to TOPIC` or `fail`. */
export interface Expectation {
  condition: string;
  otherwise?: string;
}

/** `cancelled`: those of `skipped` that were cancelled while the worker had them; absent if there are none. */
export interface ExtendReply {
  topic: string;
  extended: number;
  skipped: number[];
  deadlines: { [key: string]: number };
  performance: Performance;
  cancelled?: number[];
}

export interface ExtendRequest {
  node: string;
  seqs: number[];
  lease_ms: number;
  lease_ids?: string[] | null;
  progress?: unknown;
}

export interface FenceReply {
  fence: number;
  performance: Performance;
}

/** An `owner` that asks again gets the same token; an owner that was displaced gets no further token. */
export interface FenceRequest {
  owner?: string | null;
}

/** Files of one kind. */
export interface FileGroup {
  kind: string;
  path: string;
  files: number;
  bytes: number;
}

/** Something that needs attention: what it is about, what is wrong, how many or how long, and all that in words. */
export interface Finding {
  severity: "error" | "notice" | "warning";
  kind: "group" | "pipeline" | "queue" | "router" | "server";
  name: string;
  problem: string;
  value: number;
  text: string;
  topic?: string;
}

/** A connection that follows the topic; `paced`: it is held back while the server is under pressure. */
export interface FollowerItem {
  seq: number;
  lag: number;
  paced: boolean;
}

export interface ForgottenReply {
  app: string;
  forgotten: boolean;
  performance: Performance;
}

export interface GroupAckRequest {
  topic_id: string;
  group_id: string;
  upto_offset: number;
  partition_id?: number | null;
  from_offset?: number | null;
}

/** `member` is the consumer that holds the range: the name it gave, or its user; null if it has neither. */
export interface GroupClaimItem {
  from_offset: number;
  to_offset: number;
  deadline: number;
  member: string | null;
}

export interface GroupErrorReply {
  error: string;
  code: string;
}

/** `claims` lists what consumers hold now, at most 100 ranges. */
export interface GroupItem {
  topic: string;
  partition: number;
  group: string;
  committed_offset: number | null;
  next_offset: number;
  last_offset: number | null;
  lag: number;
  open_claims: number;
  expired_claims: number;
  acked_ahead: number;
  claims: GroupClaimItem[];
}

export interface GroupList {
  groups: GroupItem[];
  performance: Performance;
  next_cursor?: string;
}

export interface GroupResetReply {
  topic: string;
  group: string;
  partitions: ResetItem[];
  dry_run: boolean;
  performance: Performance;
}

/** The same by API key. `partition` is a number; absent: all of them. */
export interface GroupResetRequest {
  topic: string;
  group: string;
  start?: string | { [key: string]: number } | null;
  partition?: number | null;
  forget?: boolean | null;
  dry_run?: boolean | null;
}

export interface GroupStanding {
  topic_id: string;
  partition_id: number;
  group_id: string;
  committed_offset: number | null;
  next_offset: number;
  last_offset: number | null;
  lag: number;
  open_claims: number;
  expired_claims: number;
  acked_ahead: number;
}

export interface GroupsReply {
  groups: GroupStanding[];
}

export interface HealthReply {
  status: string;
  version: string;
  variant: "compiled" | "pure";
  uptime_ms: number;
  performance: Performance;
  bucket?: BucketHealth;
  role?: "primary" | "standby";
}

/** Columns of equal length, oldest first: `ts` in ms, and one for each series. */
export interface HistoryReply {
  step_ms: number;
  ts: number[];
  series: { [key: string]: number[] };
  performance: Performance;
}

/** A job group: how many of its jobs were added, and how many have ended in which way. `complete` once `size` of them have ended; the record about that is `notified_seq` of the topic `notify`, and `error` says why it could not be written so far. */
export interface JobGroupReply {
  topic: string;
  group: string;
  size: number;
  notify: string;
  added: number;
  done: number;
  dead: number;
  cancelled: number;
  removed: number;
  complete: boolean;
  opened_ts: number;
  performance: Performance;
  notified_ts?: number;
  notified_seq?: number;
  error?: string;
}

/** The job group that a job belongs to: once `size` of its jobs have ended, a record about them goes to `notify`. */
export interface JobGroupRequest {
  name: string;
  size: number;
  notify: string;
}

/** A job and how it stands. A leased one has `worker` to `pushed`, a delayed one `due`, a dead one `src_seq`. `$seq` of a dead one is its seq in the dead-letter topic. `error` is what the last worker said when it gave up. */
export interface JobItem {
  "$seq": number;
  "$ts": number;
  state: "dead" | "delayed" | "leased" | "ready";
  data: RawJson;
  deliveries?: number;
  "$node"?: string;
  "$tag"?: string;
  job_priority?: number;
  error?: string;
  worker?: string;
  lease_id?: string;
  deadline?: number;
  claimed_ts?: number;
  pushed?: boolean;
  due?: number;
  from?: string;
  src_seq?: number;
  meta?: RawJson;
}

/** `dead_letter` is the topic that the dead ones are in, null if the queue has none. */
export interface JobList {
  topic: string;
  state: "dead" | "delayed" | "leased" | "ready";
  jobs: JobItem[];
  ready: number;
  in_flight: number;
  delayed: number;
  dead: number;
  paused: boolean;
  dead_letter: string | null;
  performance: Performance;
  next_cursor?: string;
}

/** A job. A leased one has `worker` to `deadline`, a delayed one `due`, one that has ended `ended_ts` to `result`. `error` is what the last worker said when it gave up; `progress` and `result` are as the worker sent them. */
export interface JobReply {
  topic: string;
  "$seq": number;
  "$ts": number;
  state: "cancelled" | "dead" | "delayed" | "done" | "leased" | "ready";
  deliveries: number;
  performance: Performance;
  job_priority?: number;
  worker?: string;
  claimed_ts?: number;
  deadline?: number;
  due?: number;
  ended_ts?: number;
  forgotten_ts?: number;
  error?: string;
  progress?: unknown;
  result?: unknown;
}

/** `skipped`: given seqs that were not in that state. `more`: others match, call again. */
export interface JobsReply {
  topic: string;
  action: string;
  state: "dead" | "delayed" | "leased" | "ready";
  changed: number;
  skipped: number;
  more: boolean;
  dry_run: boolean;
  performance: Performance;
  warnings?: string[];
}

/** What to do with the jobs of `seqs`, with those whose tag matches, or with all of a state. retry: delayed jobs are ready now; release: leased ones are; extend: leases last `lease_ms` from now; bury: they become dead letters; redrive: dead letters come back, `rate_per_s` of them a second; delete: they go. */
export interface JobsRequest {
  action: "bury" | "delete" | "extend" | "redrive" | "release" | "retry";
  state?: "dead" | "delayed" | "leased" | "ready" | null;
  seqs?: number[] | null;
  match?: string | string[] | null;
  all?: boolean | null;
  limit?: number;
  lease_ms?: number;
  rate_per_s?: number;
  error?: string | null;
  dry_run?: boolean | null;
}

export interface KeyItem {
  key: number;
  scopes: string[];
  prefixes: string[];
  in_flight: number;
  streams: number;
}

export interface LandedItem {
  first_seq: number;
  last_seq: number;
  records: number;
}

export interface LatestOffset {
  topic_id: string;
  partition_id: number;
  next_offset: number;
  last_offset: number | null;
}

export interface LatestOffsetsReply {
  offsets: LatestOffset[];
}

export interface LatestOffsetsRequest {
  partitions: PartitionRequest[];
}

export interface Lease {
  "$seq": number;
  node: string;
  lease_id: string;
  deadline: number;
  deliveries: number;
  pushed: boolean;
  claimed_ts?: number;
  error?: string;
}

export interface LeaseList {
  topic: string;
  leases: Lease[];
  in_flight: number;
  performance: Performance;
  next_cursor?: string;
}

export interface LogLine {
  ts: number;
  level: string;
  logger: string;
  message: string;
}

export interface LoginErrorReply {
  error: string;
  message: string;
  code?: string;
}

export interface LoginReply {
  user: UserReply;
  admin_ui_access: boolean;
  expires_at: string;
  access_token: string;
  refresh_token: string;
  refresh_expires_at: string;
}

/** `username` is another name for `user`. */
export interface LoginRequest {
  user?: string | null;
  username?: string | null;
  password?: string | null;
}

/** `key` is the number of the key in the settings; null on a server without keys. */
export interface MeReply {
  key: number | null;
  scopes: string[];
  prefixes: string[];
  console: string;
  version: string;
  performance: Performance;
}

export interface MessageReply {
  topic_id: string;
  partition_id: number;
  offset: number;
  payload: string;
  key: string | null;
  timestamp_ms: number;
  user: string;
  op: string;
}

/** `deduped`: nothing was added, because the key was used for these topics before, or all jobs are pending. */
export interface MultiAppendReply {
  topics: { [key: string]: AppendedItem };
  deduped: boolean;
  performance: Performance;
  warnings?: string[];
}

export interface MultiAppendRequest {
  topics: { [key: string]: TopicBatchRequest };
  idempotency_key?: string | null;
  disable_backpressure?: boolean | null;
}

export interface NackReply {
  topic: string;
  nacked: number;
  skipped: number[];
  ready: number;
  in_flight: number;
  performance: Performance;
}

export interface NackRequest {
  node: string;
  seqs: number[];
  lease_ids?: string[] | null;
  delay_ms?: number;
  dead_letter?: boolean | null;
  error?: string | null;
}

export interface OffsetRange {
  from_offset: number;
  to_offset: number;
}

export interface OldestJob {
  topic: string;
  ts: number;
}

/** `attention` lists the gravest first, at most 100; `more` counts the rest. With a bucket there are `bucket` and `role`, as in `/v0/health`; on a standby also `primary`, the primary's address, null while none is known. */
export interface OverviewReply {
  topics: number;
  queues: number;
  records: number;
  bytes: number;
  ready: number;
  in_flight: number;
  delayed: number;
  dead: number;
  live_readers: number;
  routers: number;
  oldest_job: OldestJob | null;
  attention: Finding[];
  more: number;
  performance: Performance;
  bucket?: BucketHealth;
  role?: "primary" | "standby";
  primary?: string | null;
}

export interface PartitionOffset {
  partition_id: number;
  next_offset: number;
}

export interface PartitionRequest {
  topic_id: string;
  partition_id?: number | null;
}

/** Pausing and resuming take no fields. */
export interface PauseRequest {
}

export interface PausedReply {
  topic: string;
  paused: boolean;
  ready: number;
  in_flight: number;
  performance: Performance;
}

/** How long the server took, and what it did in that time; a field that does not apply is absent. */
export interface Performance {
  server_total_ms: number;
  wal_append_ms?: number;
  fsync_ms?: number;
  records_scanned?: number;
  throttle_wait_ms?: number;
  cold_segments_read?: number;
}

export interface PipelineDroppedReply {
  pipeline: string;
  deleted: boolean;
  performance: Performance;
}

/** A topic that it reads, up to `seq` so far. `oldest_unread_ts`: of the first record after it. */
export interface PipelineInput {
  topic: string;
  seq: number;
  head_seq: number;
  lag: number;
  oldest_unread_ts: number | null;
}

/** `generation` is the revision since which a checkpoint of the pipeline fits its definition. `lag` is measured against the heads of its topics, whether or not a runner runs it; null: its positions are unknown. */
export interface PipelineItem {
  pipeline: string;
  definition: PipelineRequest;
  revision: number;
  generation: number;
  updated_ts: number;
  status: PipelineStatus | null;
  lag: number | null;
  oldest_unread_ts: number | null;
}

export interface PipelineList {
  pipelines: PipelineItem[];
  performance: Performance;
  next_cursor?: string;
}

/** What a runner has to say about a pipeline, when (its own clock), and how grave it is. */
export interface PipelineLogLine {
  ts: number;
  level: "error" | "info" | "warning";
  message: string;
}

/** `inputs` has the topics with the longest lag first, at most 1,000. A PUT says which fields it `changed`, and its `effect`: whether the pipeline continues from its checkpoint. */
export interface PipelineReply {
  pipeline: string;
  definition: PipelineRequest;
  revision: number;
  generation: number;
  updated_ts: number;
  status: PipelineStatus | null;
  lag: number | null;
  oldest_unread_ts: number | null;
  performance: Performance;
  inputs: PipelineInput[];
  created?: boolean;
  effect?: "continues" | "created" | "same" | "starts_again";
  changed?: string[];
  dry_run?: boolean;
}

/** A definition, as sent by PUT and as stored; absent fields have the runner's defaults. */
export interface PipelineRequest {
  sources: { [key: string]: PipelineSource };
  description?: string | null;
  sql?: string | null;
  python?: string | null;
  use?: string | null;
  options?: { [key: string]: unknown } | null;
  sink?: PipelineSink | null;
  trigger?: PipelineTrigger | null;
  output_mode?: "append" | "complete" | "update" | null;
  guarantee?: "at_least_once" | "exactly_once" | null;
  state_retention?: string | null;
  enabled?: boolean | null;
  expect?: { [key: string]: string | Expectation } | null;
  batch_records?: number | null;
  state_store?: "memory" | "rocksdb" | null;
  spark?: { [key: string]: string | number | boolean } | null;
}

/** `start`: from its checkpoint, or as a new pipeline from where its sources say, which repeats its output. */
export interface PipelineRestart {
  start?: "checkpoint" | "sources";
}

/** A topic, or a table in the runner's tables directory: Parquet files with a manifest, Delta or Iceberg. */
export interface PipelineSink {
  topic?: string | null;
  tag?: string | null;
  table?: string | null;
  partition_by?: string[] | null;
  take_over?: boolean | null;
  format?: "delta" | "iceberg" | "parquet" | null;
  key?: string[] | null;
  newest_by?: string | null;
  deleted?: string | null;
  cluster_by?: string[] | null;
}

/** The input of one view: one topic, several, all whose names match, or a table. */
export interface PipelineSource {
  topic?: string | null;
  topics?: string[] | null;
  pattern?: string | null;
  table?: string | null;
  start?: string | number | null;
  schema?: string | null;
  watermark?: Watermark | null;
  static?: boolean | null;
  expect?: { [key: string]: string | Expectation } | null;
  dead_letter?: string | null;
}

/** A runner's report on a pipeline. `progress` is Spark's report on the last batch, `log` the end of its log. */
export interface PipelineStatus {
  state: "failed" | "idle" | "restarting" | "running" | "starting" | "stopped";
  runner: string;
  revision?: number;
  batch?: number | null;
  rows_total?: number;
  rows_per_second?: number;
  lag?: number;
  late_rows?: number;
  unmet?: { [key: string]: number };
  restarts?: number;
  last_error?: string | null;
  last_error_ts?: number;
  problem?: string | null;
  checkpoint?: string | null;
  table?: string | null;
  positions?: { [key: string]: Position } | null;
  progress?: { [key: string]: unknown } | null;
  log?: PipelineLogLine[];
  spark_ui?: string | null;
  ts?: number;
}

/** Continuously, once over the existing records, or that at certain times (UTC). */
export interface PipelineTrigger {
  every?: string | null;
  once?: boolean | null;
  cron?: string | null;
}

/** The last seq of a topic that a pipeline has processed; epoch 0: of whichever topic has the name. */
export interface Position {
  epoch?: number;
  seq?: number;
}

export interface PromoteReply {
  role: "primary";
  term: number;
  performance: Performance;
}

/** `force`: also if the primary renews its lease. */
export interface PromoteRequest {
  force?: boolean;
}

/** `delayed` jobs wait for a later time; they are neither ready nor in flight. `dead_lettered` counts all jobs ever moved to the dead-letter topic, `dead` those that are there now. `dead_letter_error` is why a job that should be there is still here. `claimers` counts the claims that wait and the work streams that are open now; `last_claim_ts` is when jobs were last asked for, null: not since the start. `limited_by` is the limit that holds back all ready jobs, as far as claims have met them; `held_back` counts those that limits of their tags hold back. */
export interface QueueCounters {
  ready: number;
  in_flight: number;
  dead_lettered: number;
  delayed: number;
  paused: boolean;
  dead: number;
  dead_letter_error?: string | null;
  claimers?: number;
  last_claim_ts?: number | null;
  held_back?: number;
  limited_by?: "max_in_flight" | "max_in_flight_per_tag" | "rate_per_s" | "rate_per_s_per_tag" | null;
}

/** The same of one queue. */
export interface QueueHistoryReply {
  topic: string;
  step_ms: number;
  ts: number[];
  series: { [key: string]: number[] };
  performance: Performance;
}

/** Each list has at most 1000 entries; `followers_total` counts all. */
export interface ReadersReply {
  topic: string;
  followers: FollowerItem[];
  followers_total: number;
  groups: ReadingGroup[];
  routers_in: ReadingRouter[];
  routers_out: ReadingRouter[];
  workers: WorkerItem[];
  performance: Performance;
}

export interface ReadingGroup {
  group: string;
  lag: number;
}

export interface ReadingRouter {
  router: string;
  source: string;
  dest: string;
  lag: number;
  last_error: string | null;
}

export interface ReadyReply {
  status: string;
  wal_replay_complete: boolean;
  topics: number;
  performance: Performance;
  role?: "primary" | "standby";
}

export interface Record {
  "$seq": number;
  "$ts": number;
  data: RawJson;
  "$node"?: string;
  "$tag"?: string;
  meta?: RawJson;
}

/** One record to append. `data` and `meta` are not parsed. */
export interface RecordRequest {
  data: unknown;
  tag?: string | null;
  node?: string | null;
  meta?: { [key: string]: unknown } | null;
  delay_ms?: number;
  unique_key?: string | null;
  job_priority?: number;
  group?: JobGroupRequest | null;
}

/** `skipped` dead letters have no queue to move back to, or one that the key may not use. */
export interface RedriveReply {
  topic: string;
  moved: number;
  to: { [key: string]: number };
  skipped: number;
  more: boolean;
  dry_run: boolean;
  performance: Performance;
  warnings?: string[];
}

/** Which dead letters are moved back: those whose tag matches, at most `limit`, `rate_per_s` of them per second. */
export interface RedriveRequest {
  match?: string | string[] | null;
  limit?: number;
  rate_per_s?: number;
  dry_run?: boolean | null;
}

/** The refresh token, unless it is sent as the bearer token. */
export interface RefreshRequest {
  refresh_token?: string | null;
}

/** `lag`: how many records the group has left to read from there. */
export interface ResetItem {
  partition: number;
  offset_before: number;
  next_offset: number;
  lag_before: number;
  lag: number;
}

export interface ResetReply {
  success: boolean;
  partitions: PartitionOffset[];
}

/** Where the group continues; `forget` removes it instead. */
export interface ResetRequest {
  topic_id: string;
  group_id: string;
  start?: string | { [key: string]: number } | null;
  partition_id?: number | string | null;
  all_partitions?: boolean | null;
  forget?: boolean | null;
  dry_run?: boolean | null;
}

/** How long a job waits after a failed delivery: `initial_ms`, times `factor` for each further delivery. `jitter` is the share by which the wait may be shorter, so that jobs that failed together are retried apart. */
export interface RetryBackoff {
  initial_ms?: number;
  factor?: number;
  max_ms?: number;
  jitter?: number;
}

/** A new secret; the ones before it sign as well for the grace period. */
export interface RotateRequest {
  secret?: string | null;
  grace_ms?: number;
}

export interface RouterDroppedReply {
  router: string;
  deleted: boolean;
  performance: Performance;
}

export interface RouterItem {
  router: string;
  source: string;
  dest: string;
  guarantee: string;
  forwarded_total: number;
  lag: number;
  last_error: string | null;
}

export interface RouterList {
  routers: RouterItem[];
  performance: Performance;
  next_cursor?: string;
}

export interface RouterPutReply {
  router: string;
  created: boolean;
  source: string;
  dest: string;
  preserve_node: boolean;
  preserve_tag: boolean;
  filter: string | string[] | null;
  allow_cycle: boolean;
  guarantee: string;
  performance: Performance;
  warnings?: string[];
}

/** `lag`: seqs of the source not processed yet, 0 if no record is left; `last_error`: what stops it, or null. */
export interface RouterReply {
  router: string;
  source: string;
  dest: string;
  preserve_node: boolean;
  preserve_tag: boolean;
  filter: string | string[] | null;
  allow_cycle: boolean;
  guarantee: string;
  forwarded_total: number;
  lag: number;
  last_error: string | null;
  performance: Performance;
}

/** The body of a PUT: `null` means absent. */
export interface RouterRequest {
  source: string;
  dest: string;
  preserve_node?: boolean | null;
  preserve_tag?: boolean | null;
  create_dest?: boolean | null;
  filter?: string | string[] | null;
  allow_cycle?: boolean | null;
  guarantee?: "at_least_once" | "exactly_once" | null;
  backfill?: boolean | null;
}

export interface ScheduleDroppedReply {
  schedule: string;
  deleted: boolean;
  performance: Performance;
}

/** `next_ts`: its next due time; `last_due_ts`: that of its last record, which was appended at `last_ts`. */
export interface ScheduleItem {
  schedule: string;
  topic: string;
  cron: string | null;
  every_ms: number | null;
  at: number | null;
  timezone: string;
  data: unknown;
  tag: string | null;
  missed: "all" | "once" | "skip";
  jitter_ms: number;
  paused: boolean;
  next_ts: number | null;
  last_due_ts: number | null;
  last_ts: number | null;
  last_seq: number | null;
  runs_total: number;
  last_error: string | null;
}

export interface ScheduleList {
  schedules: ScheduleItem[];
  performance: Performance;
  next_cursor?: string;
}

export interface ScheduleReply {
  schedule: string;
  topic: string;
  cron: string | null;
  every_ms: number | null;
  at: number | null;
  timezone: string;
  data: unknown;
  tag: string | null;
  missed: "all" | "once" | "skip";
  jitter_ms: number;
  paused: boolean;
  next_ts: number | null;
  last_due_ts: number | null;
  last_ts: number | null;
  last_seq: number | null;
  runs_total: number;
  last_error: string | null;
  performance: Performance;
  created?: boolean;
}

/** The body of a PUT: exactly one of `cron`, `every_ms` and `at`. `null` means absent, except for numbers. */
export interface ScheduleRequest {
  topic: string;
  cron?: string | null;
  every_ms?: number;
  at?: number;
  timezone?: string | null;
  data?: unknown;
  tag?: string | null;
  missed?: "all" | "once" | "skip" | null;
  jitter_ms?: number;
  paused?: boolean | null;
}

export interface ScheduleRunReply {
  schedule: string;
  topic: string;
  seq: number;
  performance: Performance;
}

/** A run takes no fields. */
export interface ScheduleRunRequest {
}

/** The end of a secret; `until_ts`: when it stops signing. */
export interface SecretItem {
  hint: string;
  until_ts: number | null;
}

export interface ServerReply {
  version: string;
  python: string;
  uptime_ms: number;
  pid: number;
  data_dir: string;
  memory_bytes: number;
  disk_bytes: number;
  disk_free_bytes: number;
  keys: KeyItem[];
  settings: SettingItem[];
  files: FileGroup[];
  log: LogLine[];
  performance: Performance;
}

/** `value` is null for a secret, and for what is not set; `origin` says which of both. */
export interface SettingItem {
  name: string;
  group: string;
  value: unknown;
  origin: string;
  secret: boolean;
  help: string;
}

/** What SQS clients have set and a topic has no field for: attributes by their names there, and tags. */
export interface SqsQueue {
  attributes?: { [key: string]: string };
  tags?: { [key: string]: string };
  modified_ts?: number;
}

/** The same as a request states it. */
export interface SqsRequest {
  attributes?: { [key: string]: string };
  tags?: { [key: string]: string };
  modified_ts?: number;
}

/** `owner` had the token of the app when the stage was begun; null without a token, or if it has no owner. */
export interface StageItem {
  version: number;
  stage: string;
  parts: number;
  records: number;
  bytes: number;
  expires_ms: number;
  created_ms: number;
  owner: string | null;
}

/** A record of a transaction; without a `topic` it goes to the topic of its part. */
export interface StageRecord {
  data: unknown;
  tag?: string | null;
  node?: string | null;
  meta?: { [key: string]: unknown } | null;
  delay_ms?: number;
  unique_key?: string | null;
  job_priority?: number;
  group?: JobGroupRequest | null;
  topic?: string | null;
}

/** `expires_ms` is when the stage is dropped if nothing more happens. `done` if the version is committed already; `fence` is the token of the highest version, 0 if it had none. */
export interface StageReply {
  stage: string;
  part: number;
  records: number;
  bytes: number;
  expires_ms: number;
  done: boolean;
  performance: Performance;
  fence?: number;
}

export interface StageRequest {
  stage: string;
  records: StageRecord[];
  part?: number;
  fence?: number | null;
  topic?: string | null;
  node?: string | null;
}

/** Where to start in one topic: after a seq, at a time, or with the next record. */
export interface StartRequest {
  from_seq?: number;
  tail?: boolean | null;
  from_ts?: number;
}

export interface StateReply {
  topic: string;
  type: string;
  epoch: number;
  head_seq: number;
  earliest_seq: number;
  next_seq: number;
  count: number;
  bytes: number;
  config: TopicConfig;
  effective_priority: number;
  last_write_ts: number | null;
  last_read_ts: number | null;
  performance: Performance;
  queue?: QueueCounters;
}

/** `expires_ms` is when the token ends, in ms since 1970. */
export interface StreamTokenReply {
  token: string;
  topics: string[];
  expires_ms: number;
  performance: Performance;
}

export interface StreamTokenRequest {
  topics: string[];
  ttl_ms?: number;
}

export interface TokenErrorBody {
  code: string;
  message: string;
}

export interface TokenErrorReply {
  status: string;
  error: TokenErrorBody;
  results: unknown[];
  took: number;
}

export interface TombstoneReply {
  gap_from: number;
  gap_to: number;
  reason: string;
  missed_estimate: number;
  earliest_seq: number;
  head_seq: number;
}

/** The part for one topic; the fields are those of an append to it alone. */
export interface TopicBatchRequest {
  records: RecordRequest[];
  node?: string | null;
  create?: boolean | null;
  config?: ConfigRequest | null;
}

/** A resolved configuration: it is stored and shown. The order of its fields is their order in JSON. */
export interface TopicConfig {
  type?: "log" | "queue";
  ttl_ms?: number;
  cap_records?: number;
  cap_bytes?: number;
  discard?: "old" | "reject";
  durable?: boolean;
  durability?: "disk" | "ephemeral" | "fsync" | "memory" | "replicated";
  priority?: number | null;
  auto_priority?: boolean;
  auto_create?: boolean;
  idempotency_window_ms?: number;
  dedupe_node?: boolean;
  lease_ms?: number;
  claim_jitter_ms?: number;
  max_deliveries?: number;
  dead_letter?: string | null;
  leases_durable?: boolean;
  retry_backoff?: RetryBackoff;
  keep_results_ms?: number;
  max_in_flight?: number;
  max_in_flight_per_tag?: number;
  rate_per_s?: number;
  burst?: number;
  rate_per_s_per_tag?: number;
  burst_per_tag?: number;
  sqs?: SqsQueue;
}

export interface TopicItem {
  topic: string;
  type: string;
  head_seq: number;
  earliest_seq: number;
  count: number;
  bytes: number;
  durable: boolean;
  effective_priority: number;
  durability: string;
  last_write_ts: number | null;
  epoch: number;
  queue?: QueueCounters;
}

export interface TopicList {
  topics: TopicItem[];
  performance: Performance;
  next_cursor?: string;
}

export interface UserReply {
  id: string;
  role: string;
  email: string | null;
  created_at: string;
  updated_at: string;
}

export interface WatchReply {
  wid: string;
  stream_url: string;
  session_ttl_ms: number;
  topics: { [key: string]: WatchedTopic };
  performance: Performance;
}

export interface WatchRequest {
  node?: string | string[] | null;
  limit?: number;
  max_batch_bytes?: number;
  include_meta?: boolean | null;
  include_tags?: boolean | null;
  include_data?: boolean | null;
  consistency?: "eventual" | "strong" | null;
  topics?: { [key: string]: StartRequest | null } | null;
  heartbeat_ms?: number;
  cursor?: string | null;
}

export interface WatchedTopic {
  from_seq: number;
  head_seq: number;
  earliest_seq: number;
}

/** Rows whose `column` is older than the newest one seen by more than `delay` are late. */
export interface Watermark {
  column: string;
  delay: string;
}

export interface WebhookDroppedReply {
  webhook: string;
  deleted: boolean;
  performance: Performance;
}

/** A test and a resumption take no fields. */
export interface WebhookEmptyRequest {
}

/** `cursor`: everything up to it is delivered; `lag`: records after it that are not. Keys without `admin` see the host of `url` only, and nobody sees the values of `headers`. */
export interface WebhookItem {
  webhook: string;
  topic: string;
  url: string;
  tag: string | null;
  format: "cloudevents" | "data" | "record";
  headers: { [key: string]: string };
  timeout_ms: number;
  concurrency: number;
  order: "none" | "tag" | "topic";
  max_attempts: number;
  backoff_ms: number;
  backoff_ms_max: number;
  dead_letter: string | null;
  pause_after: number;
  paused: boolean;
  paused_reason: string | null;
  paused_ts: number | null;
  secrets: SecretItem[];
  cursor: number;
  lag: number;
  in_flight: number;
  retrying: number;
  next_retry_ts: number | null;
  failures_in_a_row: number;
  delivered_total: number;
  failed_total: number;
  dead_total: number;
  lost_total: number;
  last_error: string | null;
}

export interface WebhookList {
  webhooks: WebhookItem[];
  performance: Performance;
  next_cursor?: string;
}

/** `secret` is there once: in the reply to the request that made the server draw it. */
export interface WebhookReply {
  webhook: string;
  topic: string;
  url: string;
  tag: string | null;
  format: "cloudevents" | "data" | "record";
  headers: { [key: string]: string };
  timeout_ms: number;
  concurrency: number;
  order: "none" | "tag" | "topic";
  max_attempts: number;
  backoff_ms: number;
  backoff_ms_max: number;
  dead_letter: string | null;
  pause_after: number;
  paused: boolean;
  paused_reason: string | null;
  paused_ts: number | null;
  secrets: SecretItem[];
  cursor: number;
  lag: number;
  in_flight: number;
  retrying: number;
  next_retry_ts: number | null;
  failures_in_a_row: number;
  delivered_total: number;
  failed_total: number;
  dead_total: number;
  lost_total: number;
  last_error: string | null;
  attempts: AttemptItem[];
  performance: Performance;
  secret?: string;
  created?: boolean;
}

/** The body of a PUT. `null` means absent, except for numbers. */
export interface WebhookRequest {
  topic: string;
  url: string;
  from?: "earliest" | "head" | number | null;
  tag?: string | null;
  format?: "cloudevents" | "data" | "record" | null;
  headers?: { [key: string]: string } | null;
  timeout_ms?: number;
  concurrency?: number;
  order?: "none" | "tag" | "topic" | null;
  max_attempts?: number;
  backoff_ms?: number;
  backoff_ms_max?: number;
  dead_letter?: string | null;
  pause_after?: number;
  paused?: boolean | null;
  secret?: string | null;
}

/** `answer` is the beginning of what the receiver answered. */
export interface WebhookTestReply {
  webhook: string;
  id: string;
  delivered: boolean;
  status: number;
  took_ms: number;
  error: string | null;
  answer: string;
  performance: Performance;
}

/** A worker that has claimed jobs since the server started; `last_claim_ts` is the latest time. */
export interface WorkerItem {
  worker: string;
  last_claim_ts: number;
}

/** `acknowledged_offset` is the committed offset, null if there is none. If a range was acked and something below it is not, `held_back` lists those ranges (at most 100). */
export interface ConsumersAckReply {
  success: boolean;
  acknowledged_offset: number | null;
  committed_offset?: number | null;
  held_back?: OffsetRange[];
}

export interface Queue_SchemaAckReply {
  topic: string;
  acked: number;
  skipped: number[];
  ready: number;
  in_flight: number;
  performance: Performance;
  warnings?: string[];
}

/** Every route: what is in its path, its query and its body, and what it answers. */
export interface Routes {
  /** The same as /v0/health. */
  "GET /healthz": {
    path: object;
    query: object;
    body: undefined;
    reply: HealthReply;
  };
  /** The same as /v0/ready. */
  "GET /readyz": {
    path: object;
    query: object;
    body: undefined;
    reply: ReadyReply;
  };
  /** Append records to several topics, to all of them or to none. */
  "POST /v0/append": {
    path: object;
    query: { return_seqs?: boolean };
    body: MultiAppendRequest;
    reply: MultiAppendReply;
  };
  /** A consistent copy of all data, as a tar archive that `topics restore` verifies and unpacks. */
  "GET /v0/backup": {
    path: object;
    query: object;
    body: undefined;
    reply: string;
  };
  /** Remove from the disk, now, what retention, deletes and acks have freed. */
  "POST /v0/compact": {
    path: object;
    query: object;
    body: undefined;
    reply: CompactReply;
  };
  /** Consumer groups by topic and partition: progress, lag, claims. */
  "GET /v0/groups": {
    path: object;
    query: { topic?: string; group?: string; lag_min?: number; page_size?: number; cursor?: string };
    body: undefined;
    reply: GroupList;
  };
  /** Put a group elsewhere, or forget it; a dry run tells what that would do. */
  "POST /v0/groups/reset": {
    path: object;
    query: object;
    body: GroupResetRequest;
    reply: GroupResetReply;
  };
  /** Whether the process responds. */
  "GET /v0/health": {
    path: object;
    query: object;
    body: undefined;
    reply: HealthReply;
  };
  /** The last hour of the server's own metrics, a point every 5 s. */
  "GET /v0/history": {
    path: object;
    query: { since?: number };
    body: undefined;
    reply: HistoryReply;
  };
  /** What the caller may do: scopes and name prefixes of the key. */
  "GET /v0/me": {
    path: object;
    query: object;
    body: undefined;
    reply: MeReply;
  };
  /** Metrics: Prometheus text, or JSON if the client asks for it. */
  "GET /v0/metrics": {
    path: object;
    query: object;
    body: undefined;
    reply: { [key: string]: unknown };
  };
  /** This description. */
  "GET /v0/openapi.json": {
    path: object;
    query: object;
    body: undefined;
    reply: { [key: string]: unknown };
  };
  /** Totals of the topics that the key may see, and what needs attention. */
  "GET /v0/overview": {
    path: object;
    query: object;
    body: undefined;
    reply: OverviewReply;
  };
  /** Pipelines by name, a page at a time. */
  "GET /v0/pipelines": {
    path: object;
    query: { prefix?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: PipelineList;
  };
  /** Define a pipeline or change it; a runner runs it. */
  "PUT /v0/pipelines/{pipeline}": {
    path: { pipeline: string };
    query: { dry_run?: boolean; keep_checkpoint?: boolean };
    body: PipelineRequest;
    reply: PipelineReply;
  };
  /** A pipeline and its last reported status. */
  "GET /v0/pipelines/{pipeline}": {
    path: { pipeline: string };
    query: object;
    body: undefined;
    reply: PipelineReply;
  };
  /** Remove a pipeline; its runner stops it, and the records it wrote stay. */
  "DELETE /v0/pipelines/{pipeline}": {
    path: { pipeline: string };
    query: object;
    body: undefined;
    reply: PipelineDroppedReply;
  };
  /** Let the runner stop the pipeline and start it again. */
  "POST /v0/pipelines/{pipeline}/restart": {
    path: { pipeline: string };
    query: object;
    body: PipelineRestart;
    reply: PipelineReply;
  };
  /** Report the status of a pipeline, which `GET` then shows. */
  "POST /v0/pipelines/{pipeline}/status": {
    path: { pipeline: string };
    query: object;
    body: PipelineStatus;
    reply: PipelineReply;
  };
  /** Make a standby the primary. */
  "POST /v0/promote": {
    path: object;
    query: object;
    body: PromoteRequest;
    reply: PromoteReply;
  };
  /** Whether the server is ready for requests. */
  "GET /v0/ready": {
    path: object;
    query: object;
    body: undefined;
    reply: ReadyReply;
  };
  /** Routers by name, a page at a time. */
  "GET /v0/routers": {
    path: object;
    query: { prefix?: string; source?: string; dest?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: RouterList;
  };
  /** Create a router or change it. */
  "PUT /v0/routers/{router}": {
    path: { router: string };
    query: object;
    body: RouterRequest;
    reply: RouterPutReply;
  };
  /** A router and its progress. */
  "GET /v0/routers/{router}": {
    path: { router: string };
    query: object;
    body: undefined;
    reply: RouterReply;
  };
  /** Stop forwarding and remove a router; the records it copied stay. */
  "DELETE /v0/routers/{router}": {
    path: { router: string };
    query: object;
    body: undefined;
    reply: RouterDroppedReply;
  };
  /** Schedules by name, a page at a time. */
  "GET /v0/schedules": {
    path: object;
    query: { prefix?: string; topic?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: ScheduleList;
  };
  /** Create a schedule or change it. */
  "PUT /v0/schedules/{schedule}": {
    path: { schedule: string };
    query: object;
    body: ScheduleRequest;
    reply: ScheduleReply;
  };
  /** A schedule, its next and its last run. */
  "GET /v0/schedules/{schedule}": {
    path: { schedule: string };
    query: object;
    body: undefined;
    reply: ScheduleReply;
  };
  /** Remove a schedule; the records it appended stay. */
  "DELETE /v0/schedules/{schedule}": {
    path: { schedule: string };
    query: object;
    body: undefined;
    reply: ScheduleDroppedReply;
  };
  /** Append the record of a schedule now; its due times stay. */
  "POST /v0/schedules/{schedule}/run": {
    path: { schedule: string };
    query: object;
    body: ScheduleRunRequest;
    reply: ScheduleRunReply;
  };
  /** Settings and where they come from, keys, files, the end of the log. Secrets are left out. */
  "GET /v0/server": {
    path: object;
    query: { log_lines?: number };
    body: undefined;
    reply: ServerReply;
  };
  /** Issue a short-lived token that opens the event streams of some topics. */
  "POST /v0/stream-tokens": {
    path: object;
    query: object;
    body: StreamTokenRequest;
    reply: StreamTokenReply;
  };
  /** Topics by name, a page at a time. */
  "GET /v0/topics": {
    path: object;
    query: { prefix?: string; contains?: string; type?: "log" | "queue"; sort?: "-bytes" | "-records" | "-written" | "bytes" | "name" | "records" | "written"; page_size?: number; cursor?: string; touch?: boolean };
    body: undefined;
    reply: TopicList;
  };
  /** Create a topic or replace its configuration. */
  "PUT /v0/topics/{topic}": {
    path: { topic: string };
    query: { replace?: boolean };
    body: ConfigRequest;
    reply: ConfiguredReply;
  };
  /** Change the given fields of a topic's configuration. */
  "PATCH /v0/topics/{topic}": {
    path: { topic: string };
    query: { dry_run?: boolean };
    body: ConfigPatch;
    reply: EditedReply;
  };
  /** The state of a topic. */
  "GET /v0/topics/{topic}": {
    path: { topic: string };
    query: { touch?: boolean };
    body: undefined;
    reply: StateReply;
  };
  /** Remove a topic and everything in it. */
  "DELETE /v0/topics/{topic}": {
    path: { topic: string };
    query: { if_empty?: boolean; dry_run?: boolean };
    body: undefined;
    reply: DroppedReply;
  };
  /** Append records. */
  "POST /v0/topics/{topic}": {
    path: { topic: string };
    query: { return_seqs?: boolean; tag?: string; node?: string; delay_ms?: number; create?: boolean; disable_backpressure?: boolean; dedupe?: boolean };
    body: AppendRequest;
    reply: AppendReply;
  };
  /** Complete jobs: they are deleted. */
  "POST /v0/topics/{topic}/ack": {
    path: { topic: string };
    query: object;
    body: AckRequest;
    reply: Queue_SchemaAckReply;
  };
  /** Remove jobs that are not wanted any more, also from workers that have them. */
  "POST /v0/topics/{topic}/cancel": {
    path: { topic: string };
    query: object;
    body: CancelRequest;
    reply: CancelReply;
  };
  /** Lease jobs to a worker. */
  "POST /v0/topics/{topic}/claim": {
    path: { topic: string };
    query: object;
    body: ClaimRequest;
    reply: ClaimReply;
  };
  /** Delete records by seq, by tag, or both. */
  "POST /v0/topics/{topic}/delete": {
    path: { topic: string };
    query: object;
    body: DeleteRequest;
    reply: DeletedReply;
  };
  /** Records after a cursor. */
  "POST /v0/topics/{topic}/diff": {
    path: { topic: string };
    query: object;
    body: DiffRequest;
    reply: DiffReply;
  };
  /** All records of a range, one line of JSON each; the last line confirms that it is complete. */
  "GET /v0/topics/{topic}/export": {
    path: { topic: string };
    query: { from_seq?: number; to_seq?: number; from_ts?: number; node?: string; include_tags?: boolean; include_meta?: boolean; include_data?: boolean };
    body: undefined;
    reply: string;
  };
  /** Set a new deadline for held leases. */
  "POST /v0/topics/{topic}/extend": {
    path: { topic: string };
    query: object;
    body: ExtendRequest;
    reply: ExtendReply;
  };
  /** The last hour of a queue, a point every 10 s: throughput, failures, waiting. */
  "GET /v0/topics/{topic}/history": {
    path: { topic: string };
    query: { since?: number };
    body: undefined;
    reply: QueueHistoryReply;
  };
  /** A job group: how many of its jobs have ended. */
  "GET /v0/topics/{topic}/job-groups/{group}": {
    path: { topic: string; group: string };
    query: object;
    body: undefined;
    reply: JobGroupReply;
  };
  /** Jobs of a queue that are ready, leased, delayed or dead, a page at a time. */
  "GET /v0/topics/{topic}/jobs": {
    path: { topic: string };
    query: { state: "dead" | "delayed" | "leased" | "ready"; tag?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: JobList;
  };
  /** Retry, release, extend, bury, redrive or delete the jobs that are chosen. */
  "POST /v0/topics/{topic}/jobs": {
    path: { topic: string };
    query: object;
    body: JobsRequest;
    reply: JobsReply;
  };
  /** One job, also after its end if the queue keeps results; may wait for the end. */
  "GET /v0/topics/{topic}/jobs/{seq}": {
    path: { topic: string; seq: string };
    query: { wait_ms?: number };
    body: undefined;
    reply: JobReply;
  };
  /** The leases of a queue, the next to expire first. */
  "GET /v0/topics/{topic}/leases": {
    path: { topic: string };
    query: { page_size?: number; cursor?: string };
    body: undefined;
    reply: LeaseList;
  };
  /** Give jobs back, or give them up. */
  "POST /v0/topics/{topic}/nack": {
    path: { topic: string };
    query: object;
    body: NackRequest;
    reply: NackReply;
  };
  /** Stop handing out jobs until resumed. */
  "POST /v0/topics/{topic}/pause": {
    path: { topic: string };
    query: object;
    body: PauseRequest;
    reply: PausedReply;
  };
  /** Who reads a topic: followers, groups, routers, workers. */
  "GET /v0/topics/{topic}/readers": {
    path: { topic: string };
    query: object;
    body: undefined;
    reply: ReadersReply;
  };
  /** Move dead letters back to the queues they came from. */
  "POST /v0/topics/{topic}/redrive": {
    path: { topic: string };
    query: object;
    body: RedriveRequest;
    reply: RedriveReply;
  };
  /** Hand out jobs again. */
  "POST /v0/topics/{topic}/resume": {
    path: { topic: string };
    query: object;
    body: PauseRequest;
    reply: PausedReply;
  };
  /** Records of one topic as events, for a plain EventSource. */
  "GET /v0/topics/{topic}/stream": {
    path: { topic: string };
    query: { from_seq?: string; tail?: boolean; from_ts?: number; tag?: string; node?: string; token?: string };
    body: undefined;
    reply: string;
  };
  /** Jobs pushed as events, up to max in flight on this connection. */
  "GET /v0/topics/{topic}/work": {
    path: { topic: string };
    query: { node: string; max?: number; lease_ms?: number; token?: string };
    body: undefined;
    reply: string;
  };
  /** Apps by name, a page at a time. */
  "GET /v0/txns": {
    path: object;
    query: { prefix?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: AppList;
  };
  /** The highest version of an app, its token and its stages. */
  "GET /v0/txns/{app}": {
    path: { app: string };
    query: object;
    body: undefined;
    reply: AppReply;
  };
  /** Remove an app: its version, its token and its stages. */
  "DELETE /v0/txns/{app}": {
    path: { app: string };
    query: object;
    body: undefined;
    reply: ForgottenReply;
  };
  /** Take a new fencing token; holders of an older one are refused. */
  "POST /v0/txns/{app}/fence": {
    path: { app: string };
    query: object;
    body: FenceRequest;
    reply: FenceReply;
  };
  /** Drop stages. */
  "POST /v0/txns/{app}/{version}/abort": {
    path: { app: string; version: number };
    query: object;
    body: AbortRequest;
    reply: AbortReply;
  };
  /** Make stages visible in all their topics at once; a version is committed only once. */
  "POST /v0/txns/{app}/{version}/commit": {
    path: { app: string; version: number };
    query: object;
    body: CommitRequest;
    reply: CommitReply;
  };
  /** Stage records, which become visible when their version is committed. */
  "POST /v0/txns/{app}/{version}/stage": {
    path: { app: string; version: number };
    query: object;
    body: StageRequest;
    reply: StageReply;
  };
  /** Create a watch session for topics, each with a start. */
  "POST /v0/watch": {
    path: object;
    query: { lenient?: boolean };
    body: WatchRequest;
    reply: WatchReply;
  };
  /** The event stream of a watch session. */
  "GET /v0/watch/{wid}": {
    path: { wid: string };
    query: { token?: string };
    body: undefined;
    reply: string;
  };
  /** Webhooks by name, a page at a time. */
  "GET /v0/webhooks": {
    path: object;
    query: { prefix?: string; topic?: string; page_size?: number; cursor?: string };
    body: undefined;
    reply: WebhookList;
  };
  /** Deliver a topic to a URL, or change how. */
  "PUT /v0/webhooks/{webhook}": {
    path: { webhook: string };
    query: object;
    body: WebhookRequest;
    reply: WebhookReply;
  };
  /** A webhook, its position, and its last attempts. */
  "GET /v0/webhooks/{webhook}": {
    path: { webhook: string };
    query: object;
    body: undefined;
    reply: WebhookReply;
  };
  /** Remove a webhook; its topic stays. */
  "DELETE /v0/webhooks/{webhook}": {
    path: { webhook: string };
    query: object;
    body: undefined;
    reply: WebhookDroppedReply;
  };
  /** Continue after a pause; what has failed is tried at once. */
  "POST /v0/webhooks/{webhook}/resume": {
    path: { webhook: string };
    query: object;
    body: WebhookEmptyRequest;
    reply: WebhookReply;
  };
  /** Sign with a new secret, and for a while with the one before it. */
  "POST /v0/webhooks/{webhook}/rotate": {
    path: { webhook: string };
    query: object;
    body: RotateRequest;
    reply: WebhookReply;
  };
  /** Send one message that is not a record, and report what came of it. */
  "POST /v0/webhooks/{webhook}/test": {
    path: { webhook: string };
    query: object;
    body: WebhookEmptyRequest;
    reply: WebhookTestReply;
  };
  /** A WebSocket to subscribe and publish. */
  "GET /v0/ws": {
    path: object;
    query: object;
    body: undefined;
    reply: undefined;
  };
  /** Tokens for a user and a password. */
  "POST /v1/api/auth/login": {
    path: object;
    query: object;
    body: LoginRequest;
    reply: LoginReply;
  };
  /** New tokens for a refresh token. */
  "POST /v1/api/auth/refresh": {
    path: object;
    query: object;
    body: RefreshRequest;
    reply: LoginReply;
  };
  /** Commit a group's progress. */
  "POST /v1/api/topics/ack": {
    path: object;
    query: object;
    body: GroupAckRequest;
    reply: ConsumersAckReply;
  };
  /** Messages for a consumer. */
  "POST /v1/api/topics/consume": {
    path: object;
    query: object;
    body: ConsumeRequest;
    reply: ConsumeReply;
  };
  /** The progress of groups. */
  "GET /v1/api/topics/groups": {
    path: object;
    query: { topic_id?: string; group_id?: string; limit?: number };
    body: undefined;
    reply: GroupsReply;
  };
  /** Set a group's position, or remove it. */
  "POST /v1/api/topics/groups/reset": {
    path: object;
    query: object;
    body: ResetRequest;
    reply: ResetReply;
  };
  /** Latest offsets of partitions. */
  "POST /v1/api/topics/latest-offsets": {
    path: object;
    query: object;
    body: LatestOffsetsRequest;
    reply: LatestOffsetsReply;
  };
}
