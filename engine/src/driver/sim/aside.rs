//! What is tried on copies of a device that is about to be opened; its world does not learn of it.
//!
//! A generator of its own chooses, so that whatever is tried here shifts nothing of what the worlds of
//! the seeds see. What comes of a choice at random too seldom is brought about here.

use super::check::{self, Depth, Expected};
use super::damage::Damaging;
use super::disk::{SimDisk, Written};
use super::model::ShardModel;
use super::plan::Plan;
use super::random::Random;
use super::shard::SimShard;
use super::tally::{Event, Tally};
use super::{Check, ensure};
use crate::format::group::{Header, Kind};
use crate::op::FileId;
use crate::shard::CommitBy;
use crate::units::{EpochMillis, index, wide};

/// A device, and what is known of it.
pub(super) struct Opening<'a> {
    pub(super) plan: &'a Plan,
    pub(super) disk: &'a SimDisk,
    pub(super) model: &'a ShardModel,
    pub(super) expected: Expected,
    pub(super) now: EpochMillis,
}

impl Opening<'_> {
    fn open(&self, disk: SimDisk) -> Result<SimShard, String> {
        let opened = disk.open(self.plan.limits, CommitBy::Durable, self.now);
        opened.map_err(|(_, failure)| format!("{failure:?}"))
    }
}

/// Tries things on copies, now and then.
pub(super) struct Aside {
    random: Random,
    tally: Tally,
}

impl Aside {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(!seed), tally: Tally::default() }
    }

    /// What was brought about so far.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Tries what this device is good for. `rested` says that the last life came to rest before it
    /// ended.
    pub(super) fn look(&mut self, opening: &Opening<'_>, rested: bool) -> Check {
        // What lies in shared memory would mend the log.
        if opening.disk.has_buffers() {
            return Ok(());
        }
        if rested && !opening.expected.damaged && self.random.one_in(2) {
            self.newest_damaged(opening)?;
        }
        if self.random.one_in(6) {
            self.life_cut_off(opening)?;
        }
        Ok(())
    }

    /// What the newest trim or deletion has said does not hang on its record.
    fn newest_damaged(&mut self, opening: &Opening<'_>) -> Check {
        let (kind, event) = match self.random.below(3) {
            0 => (Kind::Trim, Event::TrimDamaged),
            _ => (Kind::QueueDeletion, Event::DeletionDamaged),
        };
        let (mut disk, mut model) = (opening.disk.clone(), opening.model.clone());
        let mut expected = opening.expected;
        let mut damaging = Damaging {
            disk: &mut disk,
            model: &mut model,
            expected: &mut expected,
            random: &mut self.random,
        };
        if !damaging.newest(kind) {
            return Ok(());
        }
        self.tally.count(event);
        disk.lose_views();
        let Opening { plan, now, .. } = *opening;
        let checked = opening.open(disk).and_then(|sim| {
            check::reopened(plan, sim, model, expected, Depth::End, &mut self.random, now)
        });
        checked.map(drop).map_err(|what| format!("{}: {what}", event.name()))
    }

    /// A life of which only the head of its first group came to the device, and whose epoch nobody
    /// knows, is not in the way of the next one when that goes on in another segment.
    fn life_cut_off(&mut self, opening: &Opening<'_>) -> Check {
        const KEY: &[u8] = b"aside";
        let segment_len = index(opening.plan.manifest.segment_len);
        let mut disk = opening.disk.clone();
        let written = disk.written();
        let Some(last) = written.last() else { return Ok(()) };
        disk.epoch = None;
        let mut sim = opening.open(disk)?;
        // A shard without room refuses; so may the next one.
        let short = vec![1; self.random.between(1000, 3000)];
        if sim.shard().put_fact(KEY, Some(&short), opening.now).is_err() {
            return Ok(());
        }
        sim.shard().input_drained(opening.now);
        let mut disk = sim.crash_with_heads();
        disk.epoch = None;
        if !holds_head_behind(&disk, last) {
            return Ok(());
        }
        let mut sim = opening.open(disk)?;
        let long = vec![2; self.random.between(segment_len / 8, segment_len / 5 * 2)];
        if sim.shard().put_fact(KEY, Some(&long), opening.now).is_err() {
            return Ok(());
        }
        let committed = rest(&mut sim, opening.now);
        if sim.view().fact(KEY) != Some(long.as_slice()) {
            return Ok(());
        }
        let mut disk = sim.crash();
        disk.epoch = None;
        disk.shared = None;
        if !holds_head_behind(&disk, last) {
            return Ok(());
        }
        self.tally.count(Event::LifeCutOff);
        let sim = opening.open(disk).map_err(|what| format!("{}: {what}", cut_off()))?;
        let (found, report) = (sim.view().committed(), sim.report());
        ensure!(
            found >= committed && sim.view().fact(KEY) == Some(long.as_slice()),
            "{}: the next one has lost groups behind {found} of {committed}: {report:?}",
            cut_off()
        );
        ensure!(
            report.damaged == 0 || opening.expected.damaged,
            "{}: damage where there is none: {report:?}",
            cut_off()
        );
        Ok(())
    }
}

fn cut_off() -> &'static str {
    Event::LifeCutOff.name()
}

/// Whether the log is followed, in its segment, by the head of a group that could be the next one.
fn holds_head_behind(disk: &SimDisk, last: &Written) -> bool {
    let at = last.place.byte + wide(last.padded);
    let header = Header::read(disk.bytes_at(FileId::Segment(last.place.ordinal), at));
    header.is_some_and(|(header, _)| {
        header.previous == last.header_crc && header.sequence == last.header.sequence.next()
    })
}

/// Lets everything come to the device, and the frontier be noted.
fn rest(sim: &mut SimShard, now: EpochMillis) -> crate::units::Sequence {
    const IDLE_MS: i64 = 100;
    sim.shard().input_drained(now);
    sim.run(now);
    let later = EpochMillis::new(now.get() + IDLE_MS);
    sim.shard().tick(later);
    sim.run(later);
    sim.view().committed()
}
