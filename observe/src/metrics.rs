//! The job's metrics in OpenMetrics, for Prometheus. Encoded from a snapshot, so that a scrape touches nothing of the
//! driver. Called by the command line's server; names and labels are listed in docs/observability/metrics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use elastic_driver::{DriverEvent, EventKind, ResetWay};
use elastic_protocol::HostName;
use elastic_protocol::messages::{PhaseMs, StatusReport, WorkerStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::ledger::TimeBucket;
use crate::summary::{RESET_KINDS, kind_of_cause};

/// Most workers that have time series of their own; a gauge says how many have none.
pub const WORKERS_LABELLED_MAX: usize = 1_024;

/// Most names of reported values that have time series; a gauge says how many have none.
pub const NAMES_LABELLED_MAX: usize = 16;

/// Most hosts that have time series of their own.
pub const HOSTS_LABELLED_MAX: usize = 256;

/// Bounds of the histogram of resets, in seconds.
const DURATION_BOUNDS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, f64::MAX];

/// Counts that events give, and no status has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventTally {
    /// Resets by cause and way.
    resets: BTreeMap<(&'static str, &'static str), u64>,
    /// Durations of resets by phase.
    durations: BTreeMap<&'static str, DurationTally>,
    /// Losses of each host, of the first hosts that were lost.
    host_losses: BTreeMap<String, u64>,
    /// Losses of other hosts.
    other_host_losses: u64,
    /// Processes that failed.
    worker_failures: u64,
    worker_hangs: u64,
    stragglers: u64,
    slow_links: u64,
    rebalances: u64,
    divergences: u64,
    checkpoints: u64,
    checkpoint_failures: u64,
}

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq)]
struct DurationTally {
    counts: [u64; DURATION_BOUNDS.len()],
    sum: f64,
}

impl DurationTally {
    fn add(&mut self, seconds: f64) {
        let bound = DURATION_BOUNDS.iter().position(|bound| seconds <= *bound);
        self.counts[bound.unwrap_or(DURATION_BOUNDS.len() - 1)] += 1;
        self.sum += seconds;
    }
}

impl EventTally {
    /// Takes an event of the driver.
    pub fn handle_event(&mut self, event: &DriverEvent) {
        match &event.kind {
            EventKind::ResetDecided { cause, way } => {
                *self.resets.entry((kind_of_cause(cause), way.name())).or_default() += 1;
            }
            EventKind::ResetDone { ms, .. } => self.reset_done(ms),
            EventKind::HostJoined { host, .. } => {
                self.losses_of(host);
            }
            EventKind::HostLost { host, .. } => *self.losses_of(host) += 1,
            EventKind::WorkerExited { expected: false, .. } => self.worker_failures += 1,
            EventKind::WorkerStalled { .. } => self.worker_hangs += 1,
            EventKind::StragglerFound { .. } => self.stragglers += 1,
            EventKind::SlowLinkFound { .. } => self.slow_links += 1,
            EventKind::ShardsRebalanced { .. } => self.rebalances += 1,
            EventKind::ReplicasDiffer { .. } => self.divergences += 1,
            EventKind::CheckpointSaved { .. } => self.checkpoints += 1,
            EventKind::CheckpointFailed { .. } => self.checkpoint_failures += 1,
            _ => {}
        }
    }

    /// The losses of a host, or of all that have no time series.
    fn losses_of(&mut self, host: &HostName) -> &mut u64 {
        let is_known = self.host_losses.contains_key(host.as_str());
        if is_known || self.host_losses.len() < HOSTS_LABELLED_MAX {
            return self.host_losses.entry(host.to_string()).or_default();
        }
        &mut self.other_host_losses
    }

    fn reset_done(&mut self, ms: &PhaseMs) {
        let phases = [
            ("detect", Some(ms.detect)),
            ("form", ms.form),
            ("sync", ms.sync),
            ("total", ms.total),
        ];
        for (phase, ms) in phases {
            if let Some(ms) = ms {
                self.durations.entry(phase).or_default().add(ms / 1e3);
            }
        }
    }
}

/// The job at a moment.
#[derive(Clone, Debug)]
pub struct JobSnapshot {
    /// The driver's status.
    pub status: StatusReport,
    /// Counts of its events.
    pub tally: EventTally,
    /// Slots in each bucket.
    pub slots: BTreeMap<TimeBucket, u64>,
}

/// The text that Prometheus scrapes.
pub fn open_metrics(snapshot: &Arc<JobSnapshot>) -> String {
    let mut registry = Registry::with_prefix("elastic_node");
    registry.register_collector(Box::new(SnapshotCollector(Arc::clone(snapshot))));
    let mut encoded = String::new();
    // Writing to a string does not fail.
    let _written = text::encode(&mut encoded, &registry);
    encoded
}

/// The content type of [`open_metrics`].
pub const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The same in Prometheus' older text format, for readers without OpenMetrics (promtool, for instance): there a
/// counter's suffix is part of its name, and neither units nor the end are told.
pub fn plain_text(snapshot: &Arc<JobSnapshot>) -> String {
    let open = open_metrics(snapshot);
    let counters: BTreeSet<&str> = open
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut plain = String::with_capacity(open.len());
    for line in open.lines() {
        let mut words = line.splitn(4, ' ');
        let head = (words.next(), words.next(), words.next(), words.next());
        match head {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                plain.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

/// The content type of [`plain_text`].
pub const PLAIN_TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
struct SnapshotCollector(Arc<JobSnapshot>);

type Labels = Vec<(&'static str, String)>;

/// Time series of one metric: labels and value of each.
type Series = Vec<(Labels, f64)>;

fn plain(value: f64) -> Series {
    vec![(Vec::new(), value)]
}

fn labelled(name: &'static str, values: impl IntoIterator<Item = (String, f64)>) -> Series {
    values.into_iter().map(|(label, value)| (vec![(name, label)], value)).collect()
}

struct MetricWriter<'a>(DescriptorEncoder<'a>);

impl MetricWriter<'_> {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, series: Series) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, series: Series) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_counter::<Labels, f64, f64>(&value, None)?;
        }
        Ok(())
    }
}

impl Collector for SnapshotCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let JobSnapshot { status, tally, slots } = &*self.0;
        let mut writer = MetricWriter(encoder);
        of_job(&mut writer, status)?;
        of_fleet(&mut writer, status)?;
        of_programs(&mut writer, status)?;
        of_goodput(&mut writer, status, slots)?;
        of_checkpoints(&mut writer, status, tally)?;
        of_events(&mut writer, tally)
    }
}

fn of_job(writer: &mut MetricWriter<'_>, status: &StatusReport) -> fmt::Result {
    let labels = vec![("job", status.job.to_string()), ("version", status.driver.version.clone())];
    writer.gauge(
        "job_info",
        "The job, and the version of its driver.",
        None,
        vec![(labels, 1.0)],
    )?;
    writer.gauge(
        "phase",
        "1 for the phase that the job is in.",
        None,
        labelled("phase", [(status.phase.to_string(), 1.0)]),
    )?;
    writer.gauge("driver_term", "The driver's incarnation.", None, plain(status.term as f64))?;
    writer.gauge(
        "standbys",
        "Drivers that stand by.",
        None,
        plain(status.standbys.len() as f64),
    )?;
    writer.gauge("generation", "The current generation.", None, plain(status.generation as f64))?;
    let world_size = f64::from(status.world_size);
    writer.gauge("world_size", "Members of the current generation.", None, plain(world_size))?;
    let min_np = f64::from(status.min_np);
    writer.gauge("workers_min", "Fewest workers to go on with.", None, plain(min_np))?;
    let step = status.workers.iter().map(|worker| worker.step).max().unwrap_or(0);
    writer.gauge("step", "The highest step that a worker reported.", None, plain(step as f64))?;
    let steps_lost = plain(status.steps_lost as f64);
    writer.counter("steps_lost", "Steps that resets have lost.", steps_lost)?;
    let warnings = plain(status.warnings.len() as f64);
    writer.gauge("warnings", "Troubles that only a person can mend.", None, warnings)?;
    let dropped = plain(status.dropped_messages as f64);
    writer.counter("messages_dropped", "Messages of old generations that were dropped.", dropped)
}

fn of_fleet(writer: &mut MetricWriter<'_>, status: &StatusReport) -> fmt::Result {
    let mut hosts: BTreeMap<String, f64> = BTreeMap::new();
    for host in &status.hosts {
        *hosts.entry(host.state.to_string()).or_default() += 1.0;
    }
    writer.gauge("hosts", "Hosts by condition.", None, labelled("state", hosts))?;
    let mut workers: BTreeMap<String, f64> = BTreeMap::new();
    for worker in &status.workers {
        *workers.entry(worker.state.to_string()).or_default() += 1.0;
    }
    writer.gauge(
        "workers",
        "Workers and empty slots by condition.",
        None,
        labelled("state", workers),
    )?;
    let stalled = status.stalled.iter().map(|worker| {
        let labels = vec![("rank", worker.rank.to_string()), ("host", worker.host.to_string())];
        (labels, worker.late_ms as f64 / 1e3)
    });
    let help = "How long others have waited for a worker that hangs.";
    writer.gauge("worker_late", help, Some(Unit::Seconds), stalled.collect())?;
    let members = || status.workers.iter().filter_map(|worker| Some((worker.rank?, worker)));
    let series = members().take(WORKERS_LABELLED_MAX).map(|(rank, worker)| {
        let labels = vec![("rank", rank.to_string()), ("host", worker.host.to_string())];
        (labels, worker.step as f64)
    });
    writer.gauge("worker_step", "The step that a rank reported.", None, series.collect())?;
    of_steps(writer, status)?;
    let unlabelled = members().count().saturating_sub(WORKERS_LABELLED_MAX);
    let help = "Ranks without time series of their own.";
    writer.gauge("workers_unlabelled", help, None, plain(unlabelled as f64))
}

/// Step times, and stragglers.
fn of_steps(writer: &mut MetricWriter<'_>, status: &StatusReport) -> fmt::Result {
    let members = || status.workers.iter().filter_map(|worker| Some((worker.rank?, worker)));
    let series = |value: fn(&WorkerStatus) -> Option<f64>| {
        let labelled = members().take(WORKERS_LABELLED_MAX).filter_map(|(rank, worker)| {
            let labels = vec![("rank", rank.to_string()), ("host", worker.host.to_string())];
            Some((labels, value(worker)?))
        });
        labelled.collect::<Series>()
    };
    let seconds = Some(Unit::Seconds);
    let help = "How long a rank's steps take: a median of the last ones.";
    writer.gauge(
        "worker_step_duration",
        help,
        seconds.clone(),
        series(|it| Some(it.step_ms? / 1e3)),
    )?;
    let help = "The part of a rank's steps outside of collectives.";
    writer.gauge(
        "worker_step_compute",
        help,
        seconds.clone(),
        series(|it| Some(it.compute_ms? / 1e3)),
    )?;
    let help = "The part of a rank's steps in which it was blocked in collectives.";
    writer.gauge("worker_step_waiting", help, seconds, series(|it| Some(it.waiting_ms? / 1e3)))?;
    let help = "The logical shards that a rank carries in a step.";
    writer.gauge("worker_shards", help, None, series(|it| it.shards.map(f64::from)))?;
    let slow = status.stragglers.iter().map(|worker| {
        let labels = vec![("rank", worker.rank.to_string()), ("host", worker.host.to_string())];
        (labels, worker.factor)
    });
    let help = "How many times as long as its peers a rank computes that was named as slow.";
    writer.gauge("worker_straggling_ratio", help, None, slow.collect())?;
    let links = status.slow_links.iter().map(|link| {
        let labels = vec![("from", link.from.to_string()), ("to", link.to.to_string())];
        (labels, link.factor)
    });
    let help = "How many times as fast as a link that was named as slow the others are.";
    writer.gauge("slow_link_ratio", help, None, links.collect())
}

/// Values that the members' programs report. The names are the programs' own, so that their number is bounded here.
fn of_programs(writer: &mut MetricWriter<'_>, status: &StatusReport) -> fmt::Result {
    let members = || status.workers.iter().filter_map(|worker| Some((worker.rank?, worker)));
    let names: BTreeSet<&str> =
        members().flat_map(|(_, worker)| worker.reported.iter().map(|(name, _)| name)).collect();
    let labelled: BTreeSet<&str> = names.iter().copied().take(NAMES_LABELLED_MAX).collect();
    let mut series = Series::new();
    for (rank, worker) in members().take(WORKERS_LABELLED_MAX) {
        let shown = worker.reported.iter().filter(|(name, _)| labelled.contains(name));
        series.extend(shown.map(|(name, value)| {
            let (rank, host, name) = (rank.to_string(), worker.host.to_string(), name.to_owned());
            (vec![("rank", rank), ("host", host), ("name", name)], value)
        }));
    }
    let help = "The number that a rank's program has reported last under a name.";
    writer.gauge("reported_value", help, None, series)?;
    let unlabelled = plain((names.len() - labelled.len()) as f64);
    let help = "Names of reported numbers without time series of their own.";
    writer.gauge("reported_names_unlabelled", help, None, unlabelled)
}

fn of_goodput(
    writer: &mut MetricWriter<'_>,
    status: &StatusReport,
    slots: &BTreeMap<TimeBucket, u64>,
) -> fmt::Result {
    let slots = slots.iter().map(|(bucket, slots)| (bucket.name().to_owned(), *slots as f64));
    writer.gauge("slots", "Slots by what they do now.", None, labelled("bucket", slots))?;
    let Some(goodput) = &status.goodput else { return Ok(()) };
    let buckets = goodput.buckets.iter().map(|(bucket, seconds)| (bucket.clone(), *seconds));
    writer.gauge(
        "slot_time",
        "Time of all slots by what it went into; a gauge, since training that is lost later is booked anew.",
        Some(Unit::Seconds),
        labelled("bucket", buckets),
    )?;
    let windows = [("start", goodput.since_start), ("10m", goodput.last_10_min)];
    let windows =
        windows.into_iter().filter_map(|(window, share)| Some((window.to_owned(), share?)));
    writer.gauge(
        "goodput",
        "Share of slot-time that went into training that was kept.",
        Some(Unit::Other("ratio".to_owned())),
        labelled("window", windows),
    )
}

/// Durable checkpoints. Without `--checkpoint`, and before the first one, the gauges have no time series.
fn of_checkpoints(
    writer: &mut MetricWriter<'_>,
    status: &StatusReport,
    tally: &EventTally,
) -> fmt::Result {
    let checkpoint = status.checkpoint.as_ref();
    let series = |value: Option<f64>| value.map(plain).unwrap_or_default();
    let step = checkpoint.and_then(|it| it.last_step).map(|step| step as f64);
    writer.gauge("checkpoint_step", "The step of the last checkpoint.", None, series(step))?;
    let saved_at = checkpoint
        .and_then(|it| humantime::parse_rfc3339(it.at.as_deref()?).ok())
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let help = "When the last checkpoint became durable, since 1970.";
    let saved_at = series(saved_at.map(|since| since.as_secs_f64()));
    writer.gauge("checkpoint_timestamp", help, Some(Unit::Seconds), saved_at)?;
    let saved = plain(tally.checkpoints as f64);
    writer.counter("checkpoints", "Checkpoints that became durable.", saved)?;
    let failed = plain(tally.checkpoint_failures as f64);
    let help = "Checkpoints that could not be saved, or whose save is slow.";
    writer.counter("checkpoint_failures", help, failed)
}

fn of_events(writer: &mut MetricWriter<'_>, tally: &EventTally) -> fmt::Result {
    // A series that begins with its first reset would hide that one from `increase`.
    let all = RESET_KINDS.iter().flat_map(|cause| ResetWay::ALL.map(|way| (*cause, way.name())));
    let mut resets: BTreeMap<(&str, &str), u64> = all.map(|labels| (labels, 0)).collect();
    resets.extend(&tally.resets);
    let resets = resets.into_iter().map(|((cause, way), resets)| {
        let labels = vec![("cause", cause.to_owned()), ("way", way.to_owned())];
        (labels, resets as f64)
    });
    writer.counter("resets", "Resets by cause and way.", resets.collect())?;
    let failures = plain(tally.worker_failures as f64);
    writer.counter("worker_failures", "Processes of workers that failed.", failures)?;
    let hangs = plain(tally.worker_hangs as f64);
    writer.counter("worker_hangs", "Workers that hung while others waited for them.", hangs)?;
    let stragglers = plain(tally.stragglers as f64);
    let help = "Times that a worker, or a host, was named as slower than its peers.";
    writer.counter("stragglers", help, stragglers)?;
    let slow_links = plain(tally.slow_links as f64);
    let help = "Times that a link between hosts, or all links of one, were named as slower than the others.";
    writer.counter("slow_links", help, slow_links)?;
    let rebalances = plain(tally.rebalances as f64);
    let help = "Times that shards were dealt anew since workers had become slow, or fast again.";
    writer.counter("rebalances", help, rebalances)?;
    let divergences = plain(tally.divergences as f64);
    let help = "Times that an array was found to differ between replicas of the state.";
    writer.counter("replicas_differed", help, divergences)?;
    let losses = tally.host_losses.iter().map(|(host, losses)| (host.clone(), *losses as f64));
    writer.counter("host_losses", "Losses of hosts.", labelled("host", losses))?;
    let others = plain(tally.other_host_losses as f64);
    writer.counter("other_host_losses", "Losses of hosts without time series.", others)?;
    let help = "Durations of resets by phase.";
    let mut metric = writer.0.encode_descriptor(
        "reset_duration",
        help,
        Some(&Unit::Seconds),
        MetricType::Histogram,
    )?;
    for (phase, durations) in &tally.durations {
        let buckets: Vec<(f64, u64)> = DURATION_BOUNDS.into_iter().zip(durations.counts).collect();
        let count = durations.counts.iter().sum();
        metric.encode_family(&[("phase", *phase)])?.encode_histogram::<Labels>(
            durations.sum,
            count,
            &buckets,
            None,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{CheckpointStatus, ReportedValues, WorkerCondition};
    use elastic_protocol::{GenerationId, Term};

    use super::*;

    fn snapshot() -> Arc<JobSnapshot> {
        let job = serde_json::from_str("\"00000000-0000-0000-0000-000000000000\"");
        let status = StatusReport {
            job: job.expect("an id"),
            term: 1,
            driver: elastic_protocol::messages::DriverStatus::default(),
            standbys: Vec::new(),
            generation: 2,
            phase: elastic_protocol::messages::JobPhase::Run,
            world_size: 3,
            min_np: 1,
            max_np: None,
            shards: None,
            resets: 1,
            steps_lost: 4,
            hosts: Vec::new(),
            workers: Vec::new(),
            last_reset: None,
            resets_recent: Vec::new(),
            moved: None,
            gather: None,
            waiting_for: None,
            awaited: Vec::new(),
            stalled: Vec::new(),
            stragglers: Vec::new(),
            slow_links: Vec::new(),
            divergence: Vec::new(),
            not_compared: Vec::new(),
            warnings: Vec::new(),
            unreachable: Vec::new(),
            lanes: Vec::new(),
            checkpoint: None,
            goodput: None,
            dashboard: None,
            dropped_messages: 0,
            result: None,
            answered_at: None,
        };
        let mut tally = EventTally::default();
        tally.host_losses.insert("a \"quoted\"\\ host".to_owned(), 1);
        tally.reset_done(&PhaseMs { detect: 1.0, form: None, sync: None, total: None });
        let slots = BTreeMap::from([(TimeBucket::Training, 3)]);
        Arc::new(JobSnapshot { status, tally, slots })
    }

    #[test]
    fn open_metrics_end_with_eof_and_host_names_are_escaped() {
        let text = open_metrics(&snapshot());
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("# TYPE elastic_node_steps_lost counter"), "{text}");
        assert!(text.contains("elastic_node_steps_lost_total{} 4"), "{text}");
        assert!(text.contains(r#"host="a \"quoted\"\\ host""#), "{text}");
        assert!(text.contains("elastic_node_slots{bucket=\"training\"} 3"), "{text}");
    }

    /// Prometheus' `increase` does not count what a series begins with.
    #[test]
    fn counters_by_cause_and_by_host_begin_at_zero() {
        let host = HostName::new("a").expect("allowed");
        let mut tally = EventTally::default();
        let (term, generation) = (Term(1), GenerationId(0));
        let kind = EventKind::HostJoined { host, slots: 1 };
        tally.handle_event(&DriverEvent { term, generation, kind });
        let text = open_metrics(&Arc::new(JobSnapshot { tally, ..(*snapshot()).clone() }));
        let zeros = [
            "elastic_node_resets_total{cause=\"host_lost\",way=\"abort\"} 0",
            "elastic_node_resets_total{cause=\"worker_leaves\",way=\"restart\"} 0",
            "elastic_node_host_losses_total{host=\"a\"} 0",
        ];
        zeros.iter().for_each(|zero| assert!(text.contains(zero), "{zero}: {text}"));
    }

    #[test]
    fn the_last_checkpoint_has_its_time_and_a_job_without_one_has_no_series() {
        let snapshot = snapshot();
        let without = open_metrics(&snapshot);
        assert!(without.contains("# TYPE elastic_node_checkpoint_timestamp_seconds gauge"));
        assert!(!without.contains("elastic_node_checkpoint_timestamp_seconds{}"), "{without}");
        let checkpoint = Some(CheckpointStatus {
            directory: "/kept".to_owned(),
            last_step: Some(500),
            at: Some("1970-01-01T01:00:00.500Z".to_owned()),
            saving: None,
            failed: None,
        });
        let status = StatusReport { checkpoint, ..snapshot.status.clone() };
        let text = open_metrics(&Arc::new(JobSnapshot { status, ..(*snapshot).clone() }));
        assert!(text.contains("elastic_node_checkpoint_step{} 500"), "{text}");
        assert!(text.contains("elastic_node_checkpoint_timestamp_seconds{} 3600.5"), "{text}");
    }

    #[test]
    fn a_worker_that_hangs_has_a_series_with_how_late_it_is() {
        let snapshot = snapshot();
        let series = "elastic_node_worker_late_seconds";
        let without = open_metrics(&snapshot);
        assert!(!without.contains(&format!("{series}{{")), "{without}");
        let stalled = vec![crate::page::tests::stalled()];
        let status = StatusReport { stalled, ..snapshot.status.clone() };
        let text = open_metrics(&Arc::new(JobSnapshot { status, ..(*snapshot).clone() }));
        assert!(text.contains(&format!("{series}{{rank=\"1\",host=\"b\"}} 12.5")), "{text}");
    }

    #[test]
    fn a_slow_link_has_a_series_by_both_of_its_hosts_and_is_counted() {
        let snapshot = snapshot();
        let series = "elastic_node_slow_link_ratio";
        assert!(!open_metrics(&snapshot).contains(&format!("{series}{{")));
        let name = |name: &str| HostName::new(name).expect("allowed");
        let slow_links = vec![elastic_protocol::messages::SlowLink {
            from: name("a"),
            to: name("b"),
            factor: 12.5,
            rate_mb_per_s: 2.0,
            others_mb_per_s: 25.0,
            loss_ms: 30.0,
            slow_ms: 12_000,
            host: None,
        }];
        let status = StatusReport { slow_links, ..snapshot.status.clone() };
        let tally = EventTally { slow_links: 2, ..EventTally::default() };
        let text = open_metrics(&Arc::new(JobSnapshot { status, tally, ..(*snapshot).clone() }));
        assert!(text.contains(&format!("{series}{{from=\"a\",to=\"b\"}} 12.5")), "{text}");
        assert!(text.contains("elastic_node_slow_links_total{} 2"), "{text}");
    }

    #[test]
    fn what_members_report_is_labelled_with_rank_host_and_name_within_bounds() {
        let worker = |rank: Option<u32>, names: &[String]| {
            let mut reported = ReportedValues::default();
            names.iter().for_each(|name| reported.set(name, 0.5).expect("allowed"));
            let host = HostName::new("a").expect("allowed");
            let (slot, state) = (0, WorkerCondition::Running);
            let status = WorkerStatus::without_process(host, slot, rank, state);
            WorkerStatus { step: 1, reported, ..status }
        };
        let names =
            |from: u32| -> Vec<String> { (from..from + 10).map(|it| format!("n{it}")).collect() };
        let workers = vec![
            worker(Some(0), &["a \"quoted\" loss".to_owned()]),
            worker(Some(1), &names(10)),
            worker(Some(2), &names(20)),
            worker(None, &names(30)),
        ];
        let snapshot = snapshot();
        let status = StatusReport { workers, ..snapshot.status.clone() };
        let text = open_metrics(&Arc::new(JobSnapshot { status, ..(*snapshot).clone() }));
        let first =
            r#"elastic_node_reported_value{rank="0",host="a",name="a \"quoted\" loss"} 0.5"#;
        assert!(text.contains(first), "{text}");
        assert_eq!(text.matches("elastic_node_reported_value{").count(), NAMES_LABELLED_MAX);
        assert!(text.contains("elastic_node_reported_names_unlabelled{} 5"), "{text}");
    }

    #[test]
    fn the_older_format_has_the_suffix_in_the_name_of_a_counter() {
        let text = plain_text(&snapshot());
        assert!(text.contains("# TYPE elastic_node_steps_lost_total counter"), "{text}");
        assert!(text.contains("# HELP elastic_node_steps_lost_total Steps"), "{text}");
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
        assert!(text.contains("# TYPE elastic_node_reset_duration_seconds histogram"), "{text}");
    }
}
