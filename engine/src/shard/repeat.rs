//! Facts are logged twice, in different groups, so that one damaged group does not cost a fact before
//! a checkpoint has it. The second record rides along with a later group, the note of an idle shard at
//! the latest, and is left out when the fact has changed by then.
//!
//! Staged facts are not repeated: they are set again and again.

use std::collections::VecDeque;

use super::Shard;
use crate::format::group::Kind;
use crate::format::payload;
use crate::units::Sequence;

/// Facts that wait for their second record; further ones have to do with one.
const WAITING_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct Repeats(VecDeque<(Box<[u8]>, Sequence)>);

impl Repeats {
    /// A fact was appended to this group.
    pub(super) fn note(&mut self, key: &[u8], sequence: Sequence) {
        if self.0.len() < WAITING_MAX {
            self.0.push_back((key.into(), sequence));
        }
    }

    /// What was appended may have been cut off.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Shard {
    /// Adds what is due to the open group, as far as it has room.
    pub(super) fn add_repeats(&mut self) {
        let group = self.appended.next();
        while let Some(open) = &mut self.open
            && let Some((key, sequence)) = self.repeats.0.front()
            && *sequence < group
        {
            if let Some(value) = self.views.facts.unchanged_since(key, *sequence) {
                let bytes = payload::fact(key, value);
                if !open.fits(bytes.len(), 1) {
                    return;
                }
                open.push(bytes.len(), (Kind::Fact, 0, 0, 0), |_, dst| dst.copy_from_slice(&bytes));
                self.stats.records += 1;
            }
            self.repeats.0.pop_front();
        }
    }
}
