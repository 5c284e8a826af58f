//! What the log says of the lives that wrote it, to tell its groups from those that came to nothing.
//!
//! A life begins where it found the log to end. Behind that place the one before may have left groups
//! that are whole, chain to the log's last one, and were cut off all the same, since one in front of
//! them was torn or its writer was told to forget them. Most are overwritten; but a first group that does
//! not fit goes to the next segment, and then they stay. Every header tells where its life began, so any
//! one of them is enough to know that such a group is left over.

use crate::format::group::Header;
use crate::units::Sequence;

/// From which group on the log was written by which life or a later one.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives {
    /// Only what says more than the others: starts rise, and so do epochs. No more than lives that wrote
    /// what is looked at.
    starts: Vec<(Sequence, u64)>,
}

impl Lives {
    /// Notes that from this group on, the log was written by this life or a later one.
    pub(super) fn note(&mut self, start: Sequence, epoch: u64) {
        if self.starts.iter().any(|&(known, life)| known <= start && epoch <= life) {
            return;
        }
        self.starts.retain(|&(known, life)| known < start || epoch < life);
        self.starts.push((start, epoch));
    }

    /// Notes what a header says.
    pub(super) fn note_header(&mut self, header: &Header) {
        self.note(header.life_start, header.epoch);
    }

    /// Whether a group of this life is no part of the log, since a later life had begun in front of it.
    pub(super) fn passed(&self, sequence: Sequence, epoch: u64) -> bool {
        self.starts.iter().any(|&(start, life)| start <= sequence && epoch < life)
    }

    /// As [`passed`](Self::passed), of a header.
    pub(super) fn left_over(&self, header: &Header) -> bool {
        self.passed(header.sequence, header.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives(starts: &[(u64, u64)]) -> Lives {
        let mut lives = Lives::default();
        starts.iter().for_each(|&(start, epoch)| lives.note(Sequence::new(start), epoch));
        lives
    }

    #[test]
    fn a_group_is_left_over_when_a_later_life_began_in_front_of_it() {
        let lives = lives(&[(10, 3), (20, 5), (15, 4), (12, 5), (30, 5)]);
        for (sequence, epoch, left_over) in
            [(9, 1, false), (10, 2, true), (11, 3, false), (12, 4, true), (99, 5, false)]
        {
            assert_eq!(
                lives.passed(Sequence::new(sequence), epoch),
                left_over,
                "{sequence} {epoch}"
            );
        }
    }

    #[test]
    fn what_says_nothing_more_is_not_kept() {
        let mut lives = lives(&[(10, 3), (11, 3), (20, 4)]);
        assert_eq!(lives.starts.len(), 2, "the first of a life says what all of it do");
        lives.note(Sequence::new(10), 4);
        assert_eq!(lives.starts, [(Sequence::new(10), 4)]);
        lives.note(Sequence::new(12), 2);
        assert_eq!(lives.starts.len(), 1);
    }
}
