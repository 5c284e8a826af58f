//! Facts: small keyed values that the embedder must not lose, the last one of each key counting.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::units::{EpochMillis, Sequence};

struct Staged {
    value: Box<[u8]>,
    since: EpochMillis,
}

/// A value whose group is not committed; `None` = removed.
struct Appended {
    sequence: Sequence,
    value: Option<Box<[u8]>>,
}

/// A committed value.
struct Kept {
    value: Box<[u8]>,
    /// The group that it came with: replay that meets an older one leaves it alone.
    sequence: Sequence,
    /// Ordinal of the segment with that group.
    home: u64,
    /// The next checkpoint takes it anyway.
    changed: bool,
}

/// A committed fact as a checkpoint keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FactState<'a> {
    pub(crate) value: &'a [u8],
    pub(crate) sequence: Sequence,
    pub(crate) home: u64,
}

#[derive(Default)]
pub(crate) struct Facts {
    committed: BTreeMap<Box<[u8]>, Kept>,
    /// The newest appended value of keys whose group is not committed.
    appended: HashMap<Box<[u8]>, Appended>,
    /// Values that wait for the next group; a later one replaces an earlier one.
    staged: BTreeMap<Box<[u8]>, Staged>,
    /// Keys that were set or removed since they were last taken for a checkpoint.
    changed: Vec<Box<[u8]>>,
    /// The group in which a key was last set by a caller of this life; not that of a copy.
    #[cfg(any(test, feature = "sim"))]
    set_in: HashMap<Box<[u8]>, Sequence>,
}

impl Facts {
    pub(crate) fn committed(&self, key: &[u8]) -> Option<&[u8]> {
        self.committed.get(key).map(|kept| &*kept.value)
    }

    /// The newest value, whether it is staged, appended or committed.
    pub(crate) fn latest(&self, key: &[u8]) -> Option<&[u8]> {
        if let Some(staged) = self.staged.get(key) {
            return Some(&staged.value);
        }
        match self.appended.get(key) {
            Some(appended) => appended.value.as_deref(),
            None => self.committed(key),
        }
    }

    /// The group that the newest value of a key rides in, if it is not committed yet.
    pub(crate) fn awaited(&self, key: &[u8]) -> Option<Sequence> {
        self.appended.get(key).map(|appended| appended.sequence)
    }

    /// How many are committed.
    pub(crate) fn len(&self) -> usize {
        self.committed.len()
    }

    pub(crate) fn is_staged(&self, key: &[u8]) -> bool {
        self.staged.contains_key(key)
    }

    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let from: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(prefix), Bound::Unbounded);
        self.committed
            .range::<[u8], _>(from)
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, kept)| (&**key, &*kept.value))
    }

    pub(crate) fn state(&self, key: &[u8]) -> Option<FactState<'_>> {
        self.committed.get(key).map(Kept::state)
    }

    /// The committed value of a key (`None` = removed), or the one that it was given in this group;
    /// nothing when another one that is not committed has replaced it.
    pub(crate) fn unchanged_since(&self, key: &[u8], sequence: Sequence) -> Option<Option<&[u8]>> {
        if let Some(appended) = self.appended.get(key) {
            return (appended.sequence == sequence).then_some(appended.value.as_deref());
        }
        match self.committed.get(key) {
            Some(kept) => (kept.sequence >= sequence).then_some(Some(&kept.value)),
            None => Some(None),
        }
    }

    /// Committed facts behind `key`, or all of them, in the order of their keys.
    pub(crate) fn behind<'a>(
        &'a self,
        key: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a [u8], FactState<'a>)> + use<'a> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let facts = self.committed.range::<[u8], _>((from, Bound::Unbounded));
        facts.map(|(key, kept)| (&**key, kept.state()))
    }

    /// A group with this change is committed; its segment has the ordinal `home`.
    pub(crate) fn apply(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        sequence: Sequence,
        home: u64,
    ) {
        match (value, self.committed.get_mut(key)) {
            (_, Some(kept)) if kept.sequence > sequence => return,
            (Some(value), Some(kept)) => {
                kept.set(value);
                (kept.sequence, kept.home) = (sequence, home);
                if !std::mem::replace(&mut kept.changed, true) {
                    self.changed.push(key.into());
                }
            }
            (Some(value), None) => {
                let kept = Kept { value: value.into(), sequence, home, changed: true };
                self.committed.insert(key.into(), kept);
                self.changed.push(key.into());
            }
            (None, Some(_)) => {
                self.committed.remove(key);
                self.changed.push(key.into());
            }
            (None, None) => {}
        }
        if self.awaited(key).is_some_and(|awaited| awaited <= sequence) {
            self.appended.remove(key);
        }
    }

    /// A fact as a checkpoint kept it; `None` = removed.
    pub(crate) fn restore(&mut self, key: &[u8], state: Option<FactState<'_>>) {
        let Some(FactState { value, sequence, home }) = state else {
            self.committed.remove(key);
            return;
        };
        let kept = Kept { value: value.into(), sequence, home, changed: false };
        self.committed.insert(key.into(), kept);
    }

    /// Keys whose facts have changed since the last call; a key may come twice.
    pub(crate) fn take_changed(&mut self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.changed)
    }

    /// The checkpoint has taken this fact.
    pub(crate) fn note_saved(&mut self, key: &[u8]) {
        if let Some(kept) = self.committed.get_mut(key) {
            kept.changed = false;
        }
    }

    pub(crate) fn appended(&mut self, key: &[u8], value: Option<&[u8]>, sequence: Sequence) {
        self.staged.remove(key);
        #[cfg(any(test, feature = "sim"))]
        self.set_in.insert(key.into(), sequence);
        let value = value.map(Into::into);
        self.appended.insert(key.into(), Appended { sequence, value });
    }

    /// The group in which a key was last set in this life.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn set_in(&self, key: &[u8]) -> Option<Sequence> {
        self.set_in.get(key).copied()
    }

    /// Forgets appends above the committed frontier.
    pub(crate) fn take_back(&mut self) {
        self.appended.clear();
    }

    pub(crate) fn stage(&mut self, key: &[u8], value: &[u8], now: EpochMillis) {
        if self.latest(key) == Some(value) {
            return;
        }
        let since = self.staged.get(key).map_or(now, |staged| staged.since);
        self.staged.insert(key.into(), Staged { value: value.into(), since });
    }

    pub(crate) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    pub(crate) fn first_staged(&self) -> Option<(&[u8], &[u8])> {
        self.staged.first_key_value().map(|(key, staged)| (&**key, &*staged.value))
    }

    pub(crate) fn oldest_staged(&self) -> Option<EpochMillis> {
        self.staged.values().map(|staged| staged.since).min()
    }
}

impl Kept {
    fn state(&self) -> FactState<'_> {
        FactState { value: &self.value, sequence: self.sequence, home: self.home }
    }

    fn set(&mut self, value: &[u8]) {
        if self.value.len() == value.len() {
            self.value.copy_from_slice(value);
        } else {
            self.value = value.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_value_is_seen_before_it_is_committed_but_counts_only_then() {
        let mut facts = Facts::default();
        let now = EpochMillis::new(1);
        facts.stage(b"k", b"1", now);
        assert_eq!((facts.latest(b"k"), facts.committed(b"k")), (Some(&b"1"[..]), None));
        facts.appended(b"k", Some(b"1"), Sequence::new(4));
        assert!(!facts.has_staged());
        facts.stage(b"k", b"1", now);
        assert!(!facts.has_staged(), "an unchanged value is dropped");
        facts.apply(b"k", Some(b"1"), Sequence::new(4), 0);
        assert_eq!((facts.awaited(b"k"), facts.committed(b"k")), (None, Some(&b"1"[..])));
        facts.appended(b"k", None, Sequence::new(5));
        assert_eq!((facts.latest(b"k"), facts.committed(b"k")), (None, Some(&b"1"[..])));
    }

    #[test]
    fn prefixes_select_neighbours_only() {
        let mut facts = Facts::default();
        for key in [&b"a"[..], b"b/1", b"b/2", b"c"] {
            facts.apply(key, Some(b"v"), Sequence::new(1), 0);
        }
        let keys: Vec<_> = facts.with_prefix(b"b/").map(|(key, _)| key).collect();
        assert_eq!(keys, [&b"b/1"[..], b"b/2"]);
        let behind: Vec<_> = facts.behind(Some(b"b/1")).map(|(key, _)| key).collect();
        assert_eq!(behind, [&b"b/2"[..], b"c"]);
    }

    #[test]
    fn replay_over_a_newer_value_leaves_it() {
        let mut facts = Facts::default();
        let state = FactState { value: b"new", sequence: Sequence::new(9), home: 3 };
        facts.restore(b"k", Some(state));
        facts.apply(b"k", Some(b"old"), Sequence::new(8), 2);
        facts.apply(b"k", None, Sequence::new(7), 2);
        assert_eq!(facts.state(b"k"), Some(state));
        assert!(facts.take_changed().is_empty());
        facts.apply(b"k", Some(b"newer"), Sequence::new(10), 4);
        facts.apply(b"k", Some(b"newest"), Sequence::new(11), 4);
        assert_eq!(facts.take_changed(), [Box::from(&b"k"[..])]);
    }
}
