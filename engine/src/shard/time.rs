//! From a time to the first record of a queue that was stored at or after it.
//!
//! Store times never fall along a shard's log, so a time is a position, and a position is an offset of
//! each queue. The maps of the segments know the time at every step of 256 KiB; the groups of one
//! step tell it exactly; the positions of the queue's blocks, and the entries of one of them, lead to
//! the offset. At most a chunk or two of the log and a piece of the index are read.

use super::cold::Miss;
use super::read::headers;
use super::{SearchOutcome, Shard};
use crate::format::index_block;
use crate::layout::Place;
use crate::units::{EpochMillis, LogOffset, QueueOffset};
use crate::view::QueueNo;
use crate::view::queue::FirstAt;

impl Shard {
    /// Finds the first offset whose record was stored at or after a time.
    pub fn search_time(&mut self, queue: QueueNo, time: EpochMillis, token: u64) -> SearchOutcome {
        let found = self.first_since(time, token).and_then(|position| match position {
            Some(position) => self.first_at(queue, position, token),
            None => Ok(self.max_offset(queue)),
        });
        match found {
            Ok(found) => {
                let (min, max) = (self.min_offset(queue), self.max_offset(queue));
                SearchOutcome::Found(found.max(min).min(max))
            }
            Err(Miss::Pending) => SearchOutcome::Pending,
            Err(Miss::Failed(error)) => SearchOutcome::Failed(error),
            Err(Miss::Outside) => SearchOutcome::Found(self.max_offset(queue)),
        }
    }

    /// Where the first group begins that was stored at or after a time; `None` if none was.
    pub(super) fn first_since(
        &mut self,
        time: EpochMillis,
        token: u64,
    ) -> Result<Option<LogOffset>, Miss> {
        let mut maps = self.views.maps.iter();
        let Some((&ordinal, map)) = maps.find(|(_, map)| map.last_time() >= time) else {
            return Ok(None);
        };
        let (from, to) = map.step_around(time);
        let mut at = self.position(Place { ordinal, byte: from });
        let end = self.position(Place { ordinal, byte: to });
        while at < end {
            let (base, groups) = self.groups_at(at, token)?;
            let block_len = self.geometry.block_len();
            let mut later = headers(base, &groups, block_len)
                .filter(|(_, header, _)| header.position >= at && header.store_time >= time);
            if let Some((_, header, _)) = later.next() {
                return Ok(Some(header.position));
            }
            let behind = base.plus(groups.len());
            if behind <= at {
                return Err(Miss::Outside);
            }
            at = behind;
        }
        Ok(Some(end))
    }

    /// The first offset of a queue whose record lies at or behind a position.
    fn first_at(
        &mut self,
        queue: QueueNo,
        position: LogOffset,
        token: u64,
    ) -> Result<QueueOffset, Miss> {
        let first = self.views.queue(queue).ok_or(Miss::Outside)?.first_at(position);
        let offset = match first {
            FirstAt::Offset(offset) => offset,
            FirstAt::In(block) => {
                let bytes = self.index_block(block.at, &block.head(queue.0), Some(token))?;
                let entries = (0..).map_while(|n| index_block::entry(&bytes, n));
                let before = entries.take_while(|entry| entry.position < position).count();
                block.first + crate::units::wide(before)
            }
        };
        Ok(super::offset(offset))
    }
}
