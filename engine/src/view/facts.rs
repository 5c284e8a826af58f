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

#[derive(Default)]
pub(crate) struct Facts {
    committed: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The newest appended value of keys whose group is not committed.
    appended: HashMap<Box<[u8]>, Appended>,
    /// Values that wait for the next group; a later one replaces an earlier one.
    staged: BTreeMap<Box<[u8]>, Staged>,
}

impl Facts {
    pub(crate) fn committed(&self, key: &[u8]) -> Option<&[u8]> {
        self.committed.get(key).map(AsRef::as_ref)
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
            .map(|(key, value)| (&**key, &**value))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.committed.iter().map(|(key, value)| (&**key, &**value))
    }

    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>, sequence: Sequence) {
        match value {
            Some(value) => match self.committed.get_mut(key) {
                Some(slot) if slot.len() == value.len() => slot.copy_from_slice(value),
                Some(slot) => *slot = value.into(),
                None => drop(self.committed.insert(key.into(), value.into())),
            },
            None => drop(self.committed.remove(key)),
        }
        if self.awaited(key).is_some_and(|awaited| awaited <= sequence) {
            self.appended.remove(key);
        }
    }

    pub(crate) fn appended(&mut self, key: &[u8], value: Option<&[u8]>, sequence: Sequence) {
        self.staged.remove(key);
        let value = value.map(Into::into);
        self.appended.insert(key.into(), Appended { sequence, value });
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
        facts.apply(b"k", Some(b"1"), Sequence::new(4));
        assert_eq!((facts.awaited(b"k"), facts.committed(b"k")), (None, Some(&b"1"[..])));
        facts.appended(b"k", None, Sequence::new(5));
        assert_eq!((facts.latest(b"k"), facts.committed(b"k")), (None, Some(&b"1"[..])));
    }

    #[test]
    fn prefixes_select_neighbours_only() {
        let mut facts = Facts::default();
        for key in [&b"a"[..], b"b/1", b"b/2", b"c"] {
            facts.apply(key, Some(b"v"), Sequence::new(1));
        }
        let keys: Vec<_> = facts.with_prefix(b"b/").map(|(key, _)| key).collect();
        assert_eq!(keys, [&b"b/1"[..], b"b/2"]);
    }
}
