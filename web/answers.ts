// Written by tools/web_types.py from the structs of the server.

export interface AdminError {
  readonly error: string;
  readonly errorCode: string;
  readonly resolution: string;
  readonly details: Record<string, unknown>;
}

export interface HubFacts {
  readonly id: string;
  readonly version: string;
  readonly protocol: string;
  readonly epoch: number;
  readonly startedAt: number;
  readonly label: string;
  readonly color: string;
  readonly shard: number;
}

export interface Features {
  readonly lake: boolean;
  readonly rooms: boolean;
  readonly actors: boolean;
  readonly tryIt: boolean;
  readonly demo: boolean;
  readonly auth: boolean;
}

export interface MeAnswer {
  readonly principal: string;
  readonly subject: string;
  readonly role: 'viewer' | 'operator' | 'admin' | 'custom';
  readonly operations: string[];
  readonly expiresAt: number | null;
  readonly hub: HubFacts;
  readonly features: Features;
  readonly payloadBytes: number;
  readonly serverTime: number;
}

export interface RefreshedAnswer {
  readonly token: string;
  readonly expiresAt: number;
}

export interface LimitUse {
  readonly resource: string;
  readonly used: number;
  readonly limit: number;
}

export interface Degradation {
  readonly code: string;
  readonly since: number;
  readonly text: string;
  readonly do: string;
}

export interface Attention {
  readonly code: 'degraded' | 'blocked' | 'growing' | 'letters' | 'mailbox_full' | 'paused_senders' | 'refused_logins' | 'lake_behind' | 'held_up' | 'no_consumer';
  readonly level: 'error' | 'warning';
  readonly since: number;
  readonly text: string;
  readonly link: string;
  readonly topic: string | null;
  readonly subscription: string | null;
  readonly address: string | null;
}

export interface BusyName {
  readonly name: string;
  readonly rate: number;
}

export interface ErrorCount {
  readonly code: string;
  readonly count: number;
}

export interface Busiest {
  readonly topics: BusyName[];
  readonly actors: BusyName[];
  readonly errors: ErrorCount[];
}

export interface OverviewAnswer {
  readonly at: number;
  readonly status: 'ok' | 'degraded';
  readonly sample: Record<string, number>;
  readonly limits: LimitUse[];
  readonly degradations: Degradation[];
  readonly attention: Attention[];
  readonly attentionTotal: number;
  readonly busiest: Busiest;
}

export interface SeriesMark {
  readonly at: number;
  readonly what: 'started' | 'epoch';
}

export interface SeriesAnswer {
  readonly step: number;
  readonly t: number[];
  readonly series: Record<string, (number | null)[]>;
  readonly marks: SeriesMark[];
  readonly names: string[];
}

export interface SearchHit {
  readonly kind: 'actor' | 'topic' | 'subscription' | 'host' | 'session' | 'call' | 'entry' | 'message';
  readonly name: string;
  readonly detail: string;
  readonly link: string;
}

export interface SearchAnswer {
  readonly query: string;
  readonly hits: SearchHit[];
  readonly complete: boolean;
}

export interface MailboxFacts {
  readonly waiting: number;
  readonly oldestAt: number | null;
  readonly head: number;
  readonly floor: number;
  readonly first: number;
  readonly inFlight: number;
  readonly dead: number;
  readonly isHost: boolean;
  readonly kinds: string[];
  readonly limit: number;
}

export interface ActorRow {
  readonly address: string;
  readonly state: 'live' | 'hidden' | 'away';
  readonly capabilities: string[];
  readonly metadata: string | null;
  readonly session: string | null;
  readonly registeredAt: number | null;
  readonly expiresAt: number | null;
  readonly awaySince: number | null;
  readonly version: number | null;
  readonly mailbox: MailboxFacts | null;
  readonly queuedMessages: number;
  readonly queuedBytes: number;
}

export interface ActorsAnswer {
  readonly rows: ActorRow[];
  readonly total: number;
  readonly live: number;
  readonly away: number;
  readonly limit: number;
  readonly next: string | null;
}

export interface ConsumerFacts {
  readonly topic: string;
  readonly subscription: string;
  readonly consumer: string;
  readonly subscriptionId: string;
  readonly session: string;
  readonly inFlight: number;
  readonly window: number;
  readonly bytes: number;
  readonly blocked: boolean;
}

export interface PlainSubscription {
  readonly topic: string;
  readonly address: string;
}

export interface ActorAnswer extends ActorRow {
  readonly identity: string | null;
  readonly source: string | null;
  readonly subscriptions: PlainSubscription[];
  readonly consumers: ConsumerFacts[];
  readonly pausing: string[];
}

export interface SessionRow {
  readonly sessionId: string;
  readonly identity: string | null;
  readonly addresses: string[];
  readonly addressesTotal: number;
  readonly subject: string | null;
  readonly tokenId: string | null;
  readonly tokenExpiresAt: number | null;
  readonly source: string | null;
  readonly connectedAt: number;
  readonly lastSeenAt: number;
  readonly sent: number;
  readonly registrations: number;
  readonly subscriptions: number;
  readonly consumers: number;
  readonly queuedMessages: number;
  readonly queuedBytes: number;
  readonly blocked: boolean;
  readonly pauses: number;
  readonly client: string | null;
}

export interface SessionsAnswer {
  readonly rows: SessionRow[];
  readonly total: number;
  readonly next: string | null;
}

export interface TopicRow {
  readonly topic: string;
  readonly epoch: string;
  readonly head: number;
  readonly first: number;
  readonly messages: number;
  readonly bytes: number;
  readonly removed: number;
  readonly retentionS: number | null;
  readonly retentionBytes: number | null;
  readonly poison: string;
  readonly deadLetter: string | null;
  readonly heartbeatMs: number | null;
  readonly owner: string;
  readonly isLetters: boolean;
  readonly subscriptions: number;
  readonly worstLag: number;
  readonly letters: number;
  readonly rate: number | null;
}

export interface TopicsAnswer {
  readonly rows: TopicRow[];
  readonly total: number;
  readonly next: string | null;
}

export type SubscriptionState = 'current' | 'behind' | 'blocked' | 'paused' | 'idle' | 'held_up';

export interface SubscriptionRow {
  readonly topic: string;
  readonly subscription: string;
  readonly mode: string;
  readonly state: SubscriptionState;
  readonly lag: number;
  readonly oldestAt: number | null;
  readonly inFlight: number;
  readonly waitingRetry: number;
  readonly exhausted: number;
  readonly parked: number;
  readonly consumers: number;
  readonly floor: number;
  readonly next: number;
  readonly head: number;
  readonly first: number;
  readonly paused: boolean;
  readonly blocked: boolean;
  readonly delivered: number;
  readonly settled: number;
  readonly redelivered: number;
  readonly nacked: number;
  readonly timeouts: number;
  readonly deadLettered: number;
  readonly lost: number;
  readonly deliveredRate: number | null;
  readonly settledRate: number | null;
  readonly redeliveredRate: number | null;
  readonly trend: number | null;
  readonly owner: string;
}

export interface SubscriptionsAnswer {
  readonly rows: SubscriptionRow[];
  readonly total: number;
  readonly next: string | null;
  readonly at: number;
}

export interface FlightRow {
  readonly seq: number;
  readonly consumer: string | null;
  readonly attempt: number;
  readonly failures: number;
  readonly sentAt: number | null;
  readonly dueAt: number | null;
  readonly phase: 'ready' | 'sent' | 'waiting' | 'exhausted';
  readonly key: string | null;
  readonly reason: string | null;
}

export interface LagPoint {
  readonly at: number;
  readonly lag: number;
  readonly settled: number;
}

export interface SubscriptionAnswer extends SubscriptionRow {
  readonly epoch: string;
  readonly generation: number;
  readonly window: number;
  readonly strict: boolean;
  readonly ackTimeoutMs: number;
  readonly maxDeliveries: number;
  readonly backoffMs: number;
  readonly backoffCapMs: number;
  readonly heartbeatMs: number;
  readonly autoAck: boolean;
  readonly poison: string;
  readonly deadLetter: string;
  readonly ratePerSecond: number;
  readonly idleExpiryMs: number;
  readonly idleSince: number | null;
  readonly backlogMax: number;
  readonly backlogPolicy: string | null;
  readonly settledAboveFloor: number;
  readonly heldUp: string | null;
  readonly seats: ConsumerFacts[];
  readonly flights: FlightRow[];
  readonly flightsTotal: number;
  readonly history: LagPoint[];
}

export interface TopicAnswer extends TopicRow {
  readonly rows: SubscriptionRow[];
}

export interface SeekPlan {
  readonly epoch: string;
  readonly generation: number;
  readonly next: number;
  readonly willReplay: number;
  readonly willSkip: number;
  readonly head: number;
  readonly first: number;
  readonly inFlight: number;
}

export interface SeekAnswer {
  readonly plan: SeekPlan;
  readonly done: boolean;
}

export interface Planned {
  readonly dryRun: boolean;
  readonly operation: string;
  readonly target: string;
  readonly needs: string;
  readonly allowed: boolean;
}

export interface Done {
  readonly operation: string;
  readonly target: string;
  readonly result: Record<string, unknown>;
}

export interface LetterPreviewRow {
  readonly seq: number;
  readonly stream: string | null;
  readonly subscription: string | null;
  readonly attempts: number | null;
  readonly lastFailure: number | null;
  readonly reason: string | null;
  readonly type: string | null;
  readonly key: string | null;
}

export interface ReasonCount {
  readonly reason: string;
  readonly count: number;
}

export interface LettersPreview {
  readonly dryRun: boolean;
  readonly topic: string;
  readonly epoch: string;
  readonly through: number;
  readonly count: number;
  readonly skipped: number;
  readonly first: LetterPreviewRow[];
  readonly byReason: ReasonCount[] | null;
}

export interface JobRow {
  readonly job: string;
  readonly operation: string;
  readonly target: string;
  readonly state: 'running' | 'done' | 'failed' | 'interrupted' | 'cancelled';
  readonly subject: string | null;
  readonly identity: string | null;
  readonly beganAt: number | null;
  readonly endedAt: number | null;
  readonly done: number | null;
  readonly of: number | null;
  readonly rate: number | null;
  readonly etaMs: number | null;
  readonly detail: string | null;
  readonly result: Record<string, unknown> | null;
  readonly failures: string[];
  readonly cancellable: boolean;
}

export interface JobsAnswer {
  readonly rows: JobRow[];
}

export interface JobStarted {
  readonly job: string;
}

export interface RoomSizes {
  readonly one: number;
  readonly few: number;
  readonly many: number;
  readonly more: number;
}

export interface RoomsAnswer {
  readonly enabled: boolean;
  readonly rooms: number;
  readonly inboxes: number;
  readonly sockets: number;
  readonly sent: number;
  readonly appended: number;
  readonly fetches: number;
  readonly refused: number;
  readonly denied: number;
  readonly limited: number;
  readonly messageRate: number | null;
  readonly appendRate: number | null;
  readonly fetchRate: number | null;
  readonly acceptP50Ms: number | null;
  readonly acceptP99Ms: number | null;
  readonly bufferBytes: number;
  readonly bufferBytesMax: number;
  readonly stateBytes: number;
  readonly stateBytesMax: number;
  readonly diskBytes: number;
  readonly diskBytesMax: number;
  readonly unarchivedMost: number;
  readonly proposalsExpired: number;
  readonly sizes: RoomSizes;
}

export interface SettingRow {
  readonly name: string;
  readonly value: string;
  readonly default: string;
  readonly changed: boolean;
  readonly source: string | null;
  readonly text: string;
}

export interface SettingsAnswer {
  readonly rows: SettingRow[];
}

export interface HealthAnswer {
  readonly status: 'ok' | 'degraded';
  readonly degradations: Degradation[];
  readonly details: Record<string, unknown>;
  readonly storage: Record<string, unknown> | null;
  readonly release: string;
  readonly protocol: string;
  readonly python: string;
  readonly native: string;
  readonly epoch: number;
  readonly startedAt: number;
  readonly uptimeMs: number;
  readonly pid: number;
}

export interface SegmentRow {
  readonly first: number;
  readonly last: number;
  readonly epoch: number;
  readonly bytes: number;
  readonly sealed: boolean;
  readonly chain: string | null;
  readonly landed: boolean | null;
  readonly createdAt: number | null;
}

export interface SegmentsAnswer {
  readonly rows: SegmentRow[];
  readonly epoch: number;
  readonly first: number;
  readonly head: number;
  readonly durableHead: number;
  readonly bytes: number;
  readonly retentionBytes: number;
  readonly retentionS: number;
  readonly landed: number | null;
}

export interface WarningRow {
  readonly at: number;
  readonly level: 'warning' | 'error' | 'critical';
  readonly logger: string;
  readonly text: string;
  readonly facts: Record<string, unknown>;
}

export interface WarningsAnswer {
  readonly rows: WarningRow[];
}

export interface LiveFrame {
  readonly id: number;
  readonly at: number;
  readonly full?: Record<string, unknown> | null;
  readonly change?: Record<string, unknown> | null;
  readonly rows?: Record<string, unknown>[] | null;
  readonly skipped?: number | null;
  readonly error?: AdminError | null;
}

export type Tier = 'log' | 'lake';

export type Removed = 'erased' | 'expired' | 'retention';

export interface Place {
  readonly position: string;
  readonly epoch: number;
  readonly offset: number;
  readonly shard: number;
  readonly at: number | null;
}

export interface Outcome {
  readonly recipient: string;
  readonly outcome: string;
}

export interface HistoryRow {
  readonly at: number;
  readonly position: string;
  readonly shard: number;
  readonly epoch: number;
  readonly offset: number;
  readonly kind: string;
  readonly tier: Tier;
  readonly stream: string;
  readonly streamEpoch: number;
  readonly seq: number;
  readonly id: string | null;
  readonly type: string | null;
  readonly key: string | null;
  readonly sender: string | null;
  readonly bytes: number;
  readonly payload: string | null;
  readonly cut: boolean;
  readonly encoding: 'json' | 'hex';
  readonly removed: Removed | null;
  readonly withheld: boolean;
  readonly became: Outcome[] | null;
}

export interface Gap {
  readonly epoch: number;
  readonly first: number;
  readonly last: number;
  readonly reason: string;
}

export interface History {
  readonly rows: HistoryRow[];
  readonly next: string | null;
  readonly complete: boolean;
  readonly searchedTo: Place | null;
  readonly scanned: number;
  readonly reason: string | null;
  readonly gaps: Gap[];
  readonly logFirst: string | null;
}

export interface Delivery {
  readonly recipient: string;
  readonly recipientKind: string;
  readonly outcome: string;
  readonly attempts: number;
  readonly generation: number;
  readonly consumer: string | null;
  readonly firstSentAt: number | null;
  readonly lastSentAt: number | null;
  readonly settledAt: number | null;
  readonly settled: string | null;
  readonly reason: string | null;
}

export interface Relation {
  readonly position: string | null;
  readonly at: number | null;
  readonly kind: 'replay' | 'letter' | 'redriven' | 'original' | 'lifetime';
  readonly stream: string;
  readonly seq: number;
  readonly detail: string;
}

export interface DeadLetter {
  readonly stream: string;
  readonly subscription: string;
  readonly epoch: string;
  readonly seq: number;
  readonly attempts: number;
  readonly reason: string | null;
  readonly firstFailure: number | null;
  readonly lastFailure: number | null;
  readonly consumers: string[];
}

export interface HistoryEntry extends HistoryRow {
  readonly metadata: string | null;
  readonly headers: Record<string, string> | null;
  readonly ttl: number | null;
  readonly expiresAt: number | null;
  readonly deliverAt: number | null;
  readonly onlyFor: string | null;
  readonly dead: DeadLetter | null;
  readonly deliveries: Delivery[];
  readonly related: Relation[];
  readonly lookedThrough: string | null;
}

export interface CountBucket {
  readonly at: number;
  readonly until: number;
  readonly count: number;
}

export interface Counts {
  readonly buckets: CountBucket[];
  readonly unit: 'messages' | 'entries';
  readonly countedTo: Place | null;
}

export interface Series {
  readonly t: number[];
  readonly series: Record<string, (number | null)[]>;
}

export interface Letter {
  readonly seq: number;
  readonly position: string;
  readonly at: number;
  readonly source: string;
  readonly subscription: string;
  readonly originalEpoch: string;
  readonly originalSeq: number;
  readonly attempts: number;
  readonly reason: string | null;
  readonly firstFailure: number | null;
  readonly lastFailure: number | null;
  readonly id: string | null;
  readonly type: string | null;
  readonly key: string | null;
  readonly sender: string | null;
  readonly bytes: number;
  readonly payload: string | null;
  readonly cut: boolean;
  readonly headers: Record<string, string> | null;
  readonly redrivenBefore: boolean;
  readonly withheld: boolean;
}

export interface Letters {
  readonly topic: string;
  readonly epoch: string;
  readonly rows: Letter[];
  readonly next: string | null;
  readonly complete: boolean;
  readonly waiting: number;
  readonly ever: number;
  readonly through: number;
  readonly scanned: number;
  readonly byReason: ReasonCount[];
  readonly reason: string | null;
}

export interface LetterTopic {
  readonly topic: string;
  readonly waiting: number;
  readonly ever: number;
}

export interface LetterTopics {
  readonly topics: LetterTopic[];
}

export interface Action {
  readonly at: number;
  readonly position: string;
  readonly by: string | null;
  readonly address: string | null;
  readonly verb: string;
  readonly over: string;
  readonly request: string | null;
  readonly phase: string | null;
  readonly job: string | null;
  readonly detail: string | null;
  readonly removed: Removed | null;
}

export interface Actions {
  readonly rows: Action[];
  readonly next: string | null;
  readonly complete: boolean;
  readonly searchedTo: Place | null;
  readonly scanned: number;
  readonly reason: string | null;
  readonly gaps: Gap[];
}

export interface LakeTable {
  readonly name: string;
  readonly about: string;
  readonly position: number | null;
  readonly behind: number | null;
  readonly files: number;
  readonly bytes: number;
  readonly keptS: number | null;
}

export interface Lake {
  readonly pipeline: 'off' | 'beside' | 'elsewhere';
  readonly state: string;
  readonly reason: string | null;
  readonly epoch: number;
  readonly position: number;
  readonly head: number;
  readonly behind: number;
  readonly behindMs: number;
  readonly rows: number;
  readonly batches: number;
  readonly lastBatchRows: number | null;
  readonly lastBatchMs: number | null;
  readonly failures: number;
  readonly restarts: number;
  readonly quarantined: number;
  readonly where: string;
  readonly tables: LakeTable[];
}

export interface LakeColumn {
  readonly name: string;
  readonly type: string;
  readonly about: string;
}

export interface LakeRows {
  readonly name: string;
  readonly about: string;
  readonly columns: LakeColumn[];
  readonly rows: (Record<string, string | null>)[];
  readonly sql: string;
  readonly withheld: boolean;
}

export interface AuditHour {
  readonly hour: number;
  readonly epoch: number;
  readonly fromOffset: number;
  readonly toOffset: number;
  readonly distinctRows: number;
  readonly gaps: number;
  readonly duplicates: number;
  readonly reorders: number;
  readonly pending: number;
  readonly overdue: number;
  readonly removed: number;
  readonly segmentSha256: string | null;
  readonly verdict: string;
  readonly exceptions: string[];
}

export interface Audit {
  readonly runId: string | null;
  readonly at: number | null;
  readonly head: number | null;
  readonly verdict: string | null;
  readonly hours: AuditHour[];
  readonly isRunning: boolean;
  readonly job: string | null;
}

export interface ProofSegment {
  readonly base: number;
  readonly end: number;
  readonly epoch: number;
  readonly bytes: number;
  readonly previousChain: string;
  readonly chain: string;
}

export interface Proof {
  readonly version: number;
  readonly madeAt: number;
  readonly hub: string;
  readonly release: string;
  readonly epoch: number;
  readonly runId: string | null;
  readonly hours: AuditHour[];
  readonly segments: ProofSegment[];
  readonly how: string;
}

export interface ReplayExample {
  readonly position: string;
  readonly acceptedAt: string;
  readonly stream: string;
  readonly type: string | null;
  readonly key: string | null;
  readonly data: string | null;
}

export interface ReplayPreview {
  readonly count: number;
  readonly first: string | null;
  readonly last: string | null;
  readonly streams: Record<string, number>;
  readonly leftOut: Record<string, number>;
  readonly examples: ReplayExample[];
}

export interface Host {
  readonly host: string;
  readonly address: string;
  readonly state: 'present' | 'away' | 'silent';
  readonly kinds: string[];
  readonly awaySince: number | null;
  readonly waiting: number;
  readonly oldestAt: number | null;
  readonly moves: Record<string, number>;
  readonly counters: Record<string, number>;
}

export interface Hosts {
  readonly hosts: Host[];
  readonly silent: string[];
  readonly failed: Record<string, string>;
}

export interface HostRows {
  readonly rows: Record<string, unknown>[];
  readonly hasMore: boolean;
  readonly silent: string[];
  readonly away: string[];
  readonly denied: string[];
  readonly failed: Record<string, string>;
}

export interface CallRow {
  readonly call: string;
  readonly caller: string | null;
  readonly target: string | null;
  readonly method: string | null;
  readonly state: string;
  readonly at: number | null;
  readonly endedAt: number | null;
  readonly deadline: number | null;
  readonly host: string | null;
  readonly key: string | null;
  readonly withheld: boolean;
}

export interface Calls {
  readonly rows: CallRow[];
  readonly hasMore: boolean;
  readonly next: string | null;
  readonly silent: string[];
  readonly away: string[];
  readonly denied: string[];
  readonly failed: Record<string, string>;
  readonly searchedTo: Place | null;
  readonly reason: string | null;
}

export interface CallStep {
  readonly at: number;
  readonly what: 'requested' | 'answered' | 'accepted' | 'executed';
  readonly call: string;
  readonly caller: string | null;
  readonly target: string | null;
  readonly method: string | null;
  readonly outcome: string | null;
  readonly position: string | null;
  readonly host: string | null;
  readonly chain: string[];
  readonly payload: string | null;
  readonly cut: boolean;
}

export interface Call {
  readonly call: string;
  readonly known: Record<string, Record<string, unknown>>;
  readonly steps: CallStep[];
  readonly complete: boolean;
  readonly next: string | null;
  readonly searchedTo: Place | null;
  readonly silent: string[];
  readonly away: string[];
  readonly failed: Record<string, string>;
  readonly withheld: boolean;
}
