//! Searches by key, beside the model: they find what the model has, no more and no less.

use super::model::{Body, Stored};
use super::node::Node;
use super::random::Random;
use super::tally::Event;
use super::{Check, ensure};
use crate::error::ReadError;
use crate::record::KeyHash;
use crate::shard::{FoundRecord, KeyLimits, KeyOutcome, KeySearch};
use crate::units::{EpochMillis, LogOffset};

/// Keys of a world. Half of them have the hash of another one.
pub(super) const KEYS: u64 = 16;

/// The keys of a record with this mark: none, one or two; many records have the first.
pub(super) fn keys_of(mark: u64) -> impl Iterator<Item = u64> {
    let (kind, number) = (mark >> 60, mark >> 32);
    let first = (kind > 2).then_some(if kind < 7 { 0 } else { number % KEYS });
    let second = (kind > 10).then_some((number >> 8) % KEYS);
    first.into_iter().chain(second)
}

/// The hash of a key: two keys share one.
pub(super) fn hash_of(key: u64) -> KeyHash {
    KeyHash::new((key % (KEYS / 2)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Whether a stored record has a key.
fn has_key(record: &[u8], key: u64) -> bool {
    let mark = record.first_chunk().map(|mark| u64::from_be_bytes(*mark));
    mark.is_some_and(|mark| keys_of(mark).any(|known| known == key))
}

/// A search that waits for the device.
pub(super) struct Searching {
    key: u64,
    times: (EpochMillis, EpochMillis),
    limits: KeyLimits,
    search: KeySearch,
    /// Where the log ended when the search began.
    end: LogOffset,
}

impl Searching {
    /// A search through everything.
    pub(super) fn whole(key: u64) -> Self {
        let times = (EpochMillis::new(i64::MIN), EpochMillis::new(i64::MAX));
        let most = u32::MAX;
        let limits = KeyLimits { records_max: most, bytes_max: usize::MAX, scanned_max: most };
        Self::new(key, times, limits)
    }

    /// A search through a part of the last `ms` before `now`, that ends early more often than not.
    pub(super) fn part(random: &mut Random, now: i64, ms: i64) -> Self {
        let back = |random: &mut Random| {
            let ms = usize::try_from(ms.max(1)).unwrap_or(1);
            now - i64::try_from(random.below(ms)).unwrap_or(0)
        };
        let times = (EpochMillis::new(back(random)), EpochMillis::new(back(random)));
        let limits = KeyLimits {
            records_max: crate::units::narrow(random.between(1, 40)),
            bytes_max: random.between(1, 20_000),
            scanned_max: crate::units::narrow(random.between(1, 200)),
        };
        let key = crate::units::wide(random.below(crate::units::index(KEYS)));
        Self::new(key, times, limits)
    }

    fn new(key: u64, times: (EpochMillis, EpochMillis), limits: KeyLimits) -> Self {
        let search = KeySearch::new(hash_of(key), times, limits);
        Self { key, times, limits, search, end: LogOffset::START }
    }
}

impl Node {
    /// Begins a search.
    pub(super) fn search(&mut self, mut searching: Searching) -> Check {
        searching.end = self.sim.view().committed_end();
        let token = self.token();
        self.go_on_searching(token, searching)
    }

    /// Goes on with a search whose token has come. False when there is none.
    pub(super) fn search_again(&mut self, token: u64) -> Result<bool, String> {
        let at = self.searches.iter().position(|&(known, _)| known == token);
        let Some(at) = at else { return Ok(false) };
        let (token, searching) = self.searches.swap_remove(at);
        self.go_on_searching(token, searching)?;
        Ok(true)
    }

    fn go_on_searching(&mut self, token: u64, mut searching: Searching) -> Check {
        let key = searching.key;
        let shard = self.sim.shard();
        match shard.search_key(&mut searching.search, |record| has_key(record, key), token) {
            KeyOutcome::Done => self.check_search(searching),
            KeyOutcome::Pending => {
                self.searches.push((token, searching));
                Ok(())
            }
            KeyOutcome::Failed(error) => {
                let may = self.allowed.read_errors && matches!(error, ReadError::Io(_));
                ensure!(may, "searching for key {key} failed: {error}");
                Ok(())
            }
        }
    }

    fn check_search(&mut self, searching: Searching) -> Check {
        let Searching { key, times, limits, search, end } = searching;
        let complete = search.is_complete();
        let found = search.into_found();
        let mut expected = self.records_with(key, times, end);
        expected.sort_unstable_by_key(|(stored, _)| std::cmp::Reverse(stored.position));
        let mut rest = found.iter().peekable();
        for (stored, kept) in &expected {
            if rest.next_if(|found| is_record(found, stored)).is_some() {
                continue;
            }
            if rest.peek().is_none() && !complete {
                break;
            }
            ensure!(
                stored.damaged || !kept || self.may_be_gone(stored),
                "the record at {} with key {key} was not found, but {:?} of {}",
                stored.position,
                rest.peek().map(|found| found.record.log_offset),
                found.len()
            );
        }
        let left = rest.next();
        ensure!(left.is_none(), "{left:?} was found by key {key}, but not stored with it");
        let bytes: usize = found.iter().map(|found| found.record.bytes.len()).sum();
        ensure!(
            found.len() <= crate::units::index(u64::from(limits.records_max)),
            "too many found"
        );
        ensure!(found.len() < 2 || bytes <= limits.bytes_max, "more bytes found than asked for");
        if !found.is_empty() {
            self.sim.tally().count(Event::FoundByKey);
        }
        Ok(())
    }

    /// The visible records with a key from before `end`, and whether their queues have them for sure.
    fn records_with(
        &self,
        key: u64,
        (from, to): (EpochMillis, EpochMillis),
        end: LogOffset,
    ) -> Vec<(Stored, bool)> {
        let mut expected = Vec::new();
        for (&queue, records) in &self.model.queues {
            // What retention takes from a queue that is being deleted is not told.
            let leaving = self.model.is_leaving(queue);
            let min = if leaving { usize::MAX } else { self.model.min(queue) };
            let in_range =
                |stored: &Stored| stored.position < end && from <= stored.time && stored.time <= to;
            let with_key = |body: &Body| keys_of(body.mark).any(|known| known == key);
            let records = records.iter().enumerate();
            expected.extend(
                records
                    .filter(|(_, stored)| in_range(stored) && with_key(&stored.body))
                    .map(|(at, stored)| (*stored, at >= min)),
            );
        }
        expected
    }
}

fn is_record(found: &FoundRecord, stored: &Stored) -> bool {
    found.record.log_offset == stored.position
        && found.store_time == stored.time
        && found.record.tag == stored.body.tag
        && stored.body.is(&found.record.bytes)
}
