//! What must hold after every restart.

use super::keys::{KEYS, Searching};
use super::model::ShardModel;
use super::node::{Allowed, Node, Reading, number};
use super::plan::Plan;
use super::random::Random;
use super::shard::SimShard;
use super::tally::Event;
use super::{Check, ensure};
use crate::shard::{Acknowledge, ReadLimits};
use crate::units::EpochMillis;
use crate::view::queue::TagFilter;

/// What opening a shard may report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    /// A bit of the log has been flipped in this or an earlier life.
    pub(super) damaged: bool,
    /// The flipped bit belongs to a header, a table or a record: the log alone must show it.
    pub(super) shows: bool,
    /// A file of the views has been damaged: what it holds may fail to be read until a restart
    /// rebuilds it.
    pub(super) views_damaged: bool,
    /// The system has stopped, and the store commits ahead of the device.
    pub(super) fallen: bool,
}

/// How much of each queue is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Every record.
    Whole,
    /// The last few of some queues: what is cold makes little caches work hard.
    End,
}

/// Checks that a shard which has just been opened is exactly what its log makes it: nothing that
/// was acknowledged is lost, nothing that was not appended is there, and what is there beyond the
/// acknowledged is the log's prefix.
pub(super) fn reopened(
    plan: &Plan,
    sim: SimShard,
    mut model: ShardModel,
    expected: Expected,
    depth: Depth,
    random: &mut Random,
    now: EpochMillis,
) -> Result<Node, String> {
    let committed = sim.view().committed();
    ensure!(
        model.committed <= committed,
        "groups up to {} were acknowledged, the log ends at {committed}: {:?}",
        model.committed,
        sim.report()
    );
    model.restart(committed)?;
    if sim.view().acknowledge() == Acknowledge::Buffered {
        model.run_ahead();
    }
    let report = sim.report();
    ensure!(
        report.damaged == 0 || expected.damaged,
        "{} places are said to be damaged, but nothing was: {report:?}",
        report.damaged
    );
    ensure!(
        report.from_checkpoint || !expected.shows || report.damaged + report.unreadable > 0,
        "damage below the frontier was not reported: {report:?}"
    );
    let allowed = Allowed { read_errors: expected.views_damaged && report.from_checkpoint };
    let mut node = Node::new(sim, model, allowed);
    let tally = node.sim.tally();
    tally.count(if report.from_checkpoint { Event::FromCheckpoint } else { Event::FromLog });
    if report.torn_bytes > 0 {
        tally.count(Event::TornTailCut);
    }
    if report.damaged > 0 {
        tally.count(Event::DamageFound);
    }
    adopt_tainted(&mut node);
    for queue in 0..plan.queues.len() {
        adopt_min(plan, &mut node, queue, expected)?;
    }
    node.check_facts()?;
    for queue in 0..plan.queues.len() {
        queue_is_whole(plan, &mut node, queue, depth, random, now)?;
    }
    node.forget_reads();
    keys_are_found(&mut node, depth, random, now)?;
    node.forget_reads();
    Ok(node)
}

/// A fact that a flipped bit has touched may be any earlier one; from here on it is what it is.
fn adopt_tainted(node: &mut Node) {
    for key in node.model.tainted.clone() {
        match node.sim.view().fact(&key) {
            Some(value) => drop(node.model.facts.insert(key, value.to_vec())),
            None => drop(node.model.facts.remove(&key)),
        }
    }
}

/// Retention may have gone on, or back: what a segment on the device holds is there, what was in
/// segments that are gone is not.
fn adopt_min(plan: &Plan, node: &mut Node, queue: usize, expected: Expected) -> Check {
    let Some(queue_no) = node.queue_no(plan, queue) else { return Ok(()) };
    let told = number(node.sim.view().min_offset(queue_no));
    let records = node.model.queues.get(&queue).map(Vec::as_slice).unwrap_or_default();
    ensure!(told <= records.len(), "queue {queue} begins at {told} behind {}", records.len());
    let is_kept = |stored: &super::model::Stored| {
        node.ordinal(stored).is_some_and(|ordinal| node.sim.device().has_segment(ordinal))
    };
    let (gone, kept) = records.split_at_checked(told).unwrap_or_default();
    let too_high = gone.iter().position(|stored| is_kept(stored) && !stored.damaged);
    let known = node.model.min(queue);
    ensure!(
        too_high.is_none_or(|at| at < known) || node.model.left.contains(&queue),
        "queue {queue} begins at {told}, but {too_high:?} is still on the device"
    );
    let too_low = kept.iter().position(|stored| !is_kept(stored) && !stored.damaged);
    ensure!(
        too_low.is_none() || expected.views_damaged || expected.damaged,
        "queue {queue} begins at {told}, but {:?} is gone from the device, which has {:?}",
        too_low.map(|at| at + told),
        node.sim.device().prepared()
    );
    node.model.set_min(queue, told);
    Ok(())
}

fn queue_is_whole(
    plan: &Plan,
    node: &mut Node,
    queue: usize,
    depth: Depth,
    random: &mut Random,
    now: EpochMillis,
) -> Check {
    let visible = node.model.visible(queue);
    if node.queue_no(plan, queue).is_none() {
        ensure!(!node.model.queues.contains_key(&queue), "queue {queue} is gone");
        return Ok(());
    }
    ensure!(node.model.queues.contains_key(&queue), "queue {queue} was never opened");
    node.check_end(plan, queue)?;
    if depth == Depth::End && !random.one_in(4) {
        return Ok(());
    }
    let min = node.model.min(queue);
    let mut from = if depth == Depth::Whole { min } else { min.max(visible.saturating_sub(10)) };
    while from < visible {
        let limits = ReadLimits {
            records_max: crate::units::narrow(random.between(1, 60)),
            bytes_max: random.between(1, 40_000),
            scanned_max: 1000,
        };
        let reading = Reading { queue, from, limits, filter: TagFilter::All };
        let before = from;
        match node.read(plan, reading)? {
            Some(next) => from = next,
            None => from = read_pending(plan, node, queue, from, limits, now)?,
        }
        if before == from && node.allowed.read_errors {
            return Ok(());
        }
        ensure!(before < from, "queue {queue}: reading stands still at {before}");
    }
    node.let_go(0)?;
    if min < visible {
        node.read_at(queue, random.between(min, visible - 1), 0)?;
        let ms = random.between(min, visible - 1);
        let records = node.model.queues.get(&queue).and_then(|records| records.get(ms).copied());
        if let Some(stored) = records {
            node.search_time(plan, queue, stored.time)?;
        }
        node.sim.run(now);
    }
    Ok(())
}

/// Lets the device answer and reads again.
fn read_pending(
    plan: &Plan,
    node: &mut Node,
    queue: usize,
    from: usize,
    limits: ReadLimits,
    now: EpochMillis,
) -> Result<usize, String> {
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        node.sim.run(now);
        let mut ready = Vec::new();
        node.sim.shard().take_ready(&mut ready);
        ensure!(!ready.is_empty(), "queue {queue}: the device is idle, but nobody is told");
        let reading = Reading { queue, from, limits, filter: TagFilter::All };
        if let Some(next) = node.read(plan, reading)? {
            return Ok(next);
        }
    }
    Err(format!("queue {queue}: offset {from} is never there"))
}

/// Every key, or one of them, leads to the records that have it.
fn keys_are_found(node: &mut Node, depth: Depth, random: &mut Random, now: EpochMillis) -> Check {
    let one = crate::units::wide(random.below(crate::units::index(KEYS)));
    let keys = if depth == Depth::Whole { 0..KEYS } else { one..one + 1 };
    for key in keys {
        node.search(Searching::whole(key))?;
        while !node.searches.is_empty() {
            node.sim.run(now);
            let mut ready = Vec::new();
            node.sim.shard().take_ready(&mut ready);
            ensure!(!ready.is_empty(), "key {key}: the device is idle, but nobody is told");
            for token in ready {
                node.search_again(token)?;
            }
        }
    }
    Ok(())
}
