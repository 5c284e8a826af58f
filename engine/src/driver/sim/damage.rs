//! Damage to a log below the frontier that it names: which bytes it hits, and what it may cost.
//!
//! It hits what a later group has noted as committed, and never the first segment, which may have been
//! let go already.

use std::ops::Range;

use super::check::Expected;
use super::disk::{SimDisk, Written};
use super::model::ShardModel;
use super::random::Random;
use super::tally::Event;
use crate::format::group::{Group, HEADER_LEN, Kind};
use crate::op::FileId;
use crate::units::{index, wide};

/// Bytes in a row that are damaged at most.
const DAMAGE_LEN_MAX: usize = 4096;

/// Keys of facts that are staged: they are not logged again.
const STAGED: &[u8] = b"staged/";

/// A shard's device, and what is known of it.
pub(super) struct Damaging<'a> {
    pub(super) disk: &'a mut SimDisk,
    pub(super) model: &'a mut ShardModel,
    pub(super) expected: &'a mut Expected,
    pub(super) random: &'a mut Random,
}

/// What the damage begins with.
struct Aim {
    /// Which of the groups.
    at: usize,
    /// Which of its bytes, if not any.
    within: Option<Range<usize>>,
}

impl Damaging<'_> {
    /// Damages something, unless there is nothing to hit.
    pub(super) fn anything(&mut self) {
        let written = self.disk.written();
        let below = below_frontier(&written);
        // The last group of a life is repeated by the next one, all others by their own.
        let last_of_lives: Vec<usize> = (0..below.len().saturating_sub(1))
            .filter(|&at| match below.get(at..at + 2) {
                Some([group, next]) => group.header.epoch < next.header.epoch,
                _ => false,
            })
            .collect();
        let at = self.random.below(below.len());
        let any = Aim { at, within: None };
        let aim = match self.random.below(12) {
            0..4 => {
                let last = last_of_lives.get(self.random.below(last_of_lives.len()));
                Aim { at: last.copied().unwrap_or(at), within: None }
            }
            // Trims and deletions are few, and the newest one says most.
            kind @ 4..8 => {
                let kind = if kind < 6 { Kind::Trim } else { Kind::QueueDeletion };
                newest_of(self.disk, &below, kind).unwrap_or(any)
            }
            _ => any,
        };
        if self.hit(&below, aim) && self.random.one_in(2) {
            // A checkpoint would keep the next life from looking at most of the log.
            self.disk.lose_checkpoints();
        }
    }

    /// Damages the newest record of a kind. False when there is none.
    pub(super) fn newest(&mut self, kind: Kind) -> bool {
        let written = self.disk.written();
        let below = below_frontier(&written);
        newest_of(self.disk, &below, kind).is_some_and(|aim| self.hit(&below, aim))
    }

    /// Flips one bit, or scrambles a run of bytes. False when nothing is there.
    fn hit(&mut self, groups: &[&Written], aim: Aim) -> bool {
        let Some(&&group) = groups.get(aim.at) else { return false };
        let within = aim.within.unwrap_or(0..group.padded);
        let from = wide(within.start + self.random.below(within.len()));
        let from = group.place.byte + from;
        let run = self.random.one_in(2);
        let len = if run { self.random.between(1, DAMAGE_LEN_MAX) } else { 1 };
        let ordinal = group.place.ordinal;
        let (mut to, mut shows) = (from, false);
        // The run ends with the last group that is noted, or in a part of the segment without one.
        for group in groups.iter().filter(|group| group.place.ordinal == ordinal) {
            let start = group.place.byte;
            let end = start + wide(group.padded);
            if end <= from || from + wide(len) <= start {
                continue;
            }
            to = end.min(from + wide(len));
            let (first, last) = (from.max(start) - start, to - start);
            let range = index(first)..index(last);
            shows |= range.start < index(u64::from(group.header.len));
            for (kind, position, bytes) in touched_by(self.disk, group, &range) {
                cost(self.model, kind, position, &bytes);
            }
        }
        let file = FileId::Segment(ordinal);
        if run {
            self.disk.scramble(file, from..to);
            self.disk.tally.count(Event::Scrambled);
        } else {
            self.disk.flip_bit(file, from, self.random.below(8));
            self.disk.tally.count(Event::BitFlip);
        }
        self.expected.damaged = true;
        self.expected.shows = shows;
        true
    }
}

/// The groups that a later one has noted as committed, without those of the first segment.
fn below_frontier(written: &[Written]) -> Vec<&Written> {
    let noted = SimDisk::noted(written);
    let first = written.first().map_or(0, |group| group.place.ordinal);
    written
        .iter()
        .filter(|group| group.header.sequence <= noted && group.place.ordinal > first)
        .collect()
}

/// The newest record of a kind in these groups.
fn newest_of(disk: &SimDisk, groups: &[&Written], kind: Kind) -> Option<Aim> {
    groups.iter().enumerate().rev().find_map(|(at, group)| {
        let file = FileId::Segment(group.place.ordinal);
        let parsed = Group::parse(disk.bytes_at(file, group.place.byte))?;
        let mut records = parsed.records().filter(|record| !record.is_copy());
        let record = records.find(|record| record.entry.kind == kind)?;
        let start = record.position.get() - parsed.header.position.get();
        let start = usize::try_from(start).ok()?;
        Some(Aim { at, within: Some(start..start + record.bytes.len()) })
    })
}

/// The records that damage to this range of a group's bytes costs: those that it touches, or all of
/// them when it touches header or table.
fn touched_by(
    disk: &SimDisk,
    group: &Written,
    range: &Range<usize>,
) -> Vec<(Kind, crate::LogOffset, Vec<u8>)> {
    let file = FileId::Segment(group.place.ordinal);
    let bytes = disk.bytes_at(file, group.place.byte).get(..group.padded).unwrap_or_default();
    let Some(parsed) = Group::parse(bytes) else { return Vec::new() };
    let table_from = HEADER_LEN + index(u64::from(parsed.header.records_len));
    let table_to = index(u64::from(parsed.header.len));
    let all = range.start < HEADER_LEN || (range.start < table_to && table_from < range.end);
    let base = parsed.header.position;
    let (hit_from, hit_to) = (base.plus(range.start), base.plus(range.end));
    parsed
        .records()
        .filter(|record| {
            let end = record.position.plus(record.bytes.len());
            all || (record.position < hit_to && hit_from < end)
        })
        .map(|record| (record.entry.kind, record.position, record.bytes.to_vec()))
        .collect()
}

/// Notes in the model what damage to a record may cost.
fn cost(model: &mut ShardModel, kind: Kind, position: crate::LogOffset, bytes: &[u8]) {
    match kind {
        Kind::Message => {
            let all = model.queues.values_mut().flatten();
            all.filter(|stored| stored.position == position).for_each(|s| s.damaged = true);
        }
        // All but staged facts are logged again.
        Kind::Fact => {
            let fact = crate::format::payload::parse_fact(bytes);
            if let Some((key, _)) = fact.filter(|(key, _)| key.starts_with(STAGED)) {
                model.tainted.insert(key.to_vec());
            }
        }
        Kind::QueueState | Kind::QueueDeletion | Kind::Trim | Kind::Ends | Kind::Note => {}
    }
}
