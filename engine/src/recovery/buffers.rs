//! What a killed process has left in shared memory: groups that were acknowledged and may not be on the
//! device. They go to their places in the log before it is followed there.
//!
//! A group is taken only where it is the next one by sequence, chain and place, behind what the log has;
//! so buffers of another copy of the store, or of a log that went on without them, change nothing.

use std::io;
use std::ops::Range;

use super::LogSource;
use crate::format::buffers::{Head, MARK_LEN, Mark};
use crate::format::group::{Group, Header};
use crate::layout::{Geometry, Place};
use crate::mem::ChunkTail;
use crate::units::{Sequence, index, wide};
use crate::view::Covered;

/// Buffers of the last life; none, when it has not left any.
pub(super) struct Buffers {
    geometry: Geometry,
    head: Option<Head>,
    /// By sequence: which buffer, and what it holds.
    marks: Vec<(u32, Mark)>,
    loaded: Option<Loaded>,
}

/// One buffer, read back.
struct Loaded {
    number: u32,
    memory: ChunkTail,
    /// Its sound groups, in order.
    groups: Vec<Known>,
}

struct Known {
    header: Header,
    crc: u32,
    bytes: Range<usize>,
}

/// A group that comes next.
pub(super) struct Next {
    pub(super) place: Place,
    /// Checksum of its header.
    pub(super) crc: u32,
    /// Which group of the buffer it is.
    at: usize,
}

impl Buffers {
    /// Reads which groups there are.
    pub(super) fn find(geometry: &Geometry, source: &mut dyn LogSource) -> io::Result<Self> {
        let head = source.buffers()?;
        let mut marks = Vec::new();
        for number in 0..head.map_or(0, |head| head.count) {
            let mut mark = [0; MARK_LEN];
            let at = head.map_or(0, |head| head.mark_at(number));
            let len = source.read_buffers(wide(at), &mut mark)?;
            let mark = Mark::decode(mark.get(..len).unwrap_or_default());
            marks.extend(mark.map(|mark| (number, mark)));
        }
        marks.sort_unstable_by_key(|(_, mark)| mark.sequence);
        Ok(Self { geometry: *geometry, head, marks, loaded: None })
    }

    /// The group that follows what is covered, if it is here.
    pub(super) fn behind(
        &mut self,
        covered: &Covered,
        source: &mut dyn LogSource,
    ) -> io::Result<Option<Next>> {
        let wanted = covered.sequence.next();
        let after = self.marks.partition_point(|(_, mark)| mark.sequence <= wanted);
        let Some(&(number, mark)) = after.checked_sub(1).and_then(|at| self.marks.get(at)) else {
            return Ok(None);
        };
        if self.loaded.as_ref().is_none_or(|loaded| loaded.number != number) {
            self.loaded = Some(self.load(number, &mark, source)?);
        }
        let at = index(wanted.get() - mark.sequence.get());
        Ok(self.loaded.as_ref().and_then(|loaded| loaded.follows(at, covered, &self.geometry)))
    }

    /// This group and all behind it that lie with it in buffer and segment and chain, and how many
    /// they are.
    pub(super) fn run_from(&mut self, next: &Next) -> (&[u8], u64) {
        let Some(loaded) = &mut self.loaded else { return (&[], 0) };
        let (count, bytes) = loaded.run_from(next, &self.geometry);
        (loaded.memory.buffer().get(bytes).unwrap_or_default(), count)
    }

    /// The first group of the newest buffer.
    pub(super) fn newest_start(&self) -> Option<Sequence> {
        self.marks.last().map(|(_, mark)| mark.sequence)
    }

    fn load(&self, number: u32, mark: &Mark, source: &mut dyn LogSource) -> io::Result<Loaded> {
        let at = self.head.map_or(0, |head| head.buffer_at(number));
        let len_max = self.head.map_or(0, |head| head.buffer_len);
        let len = index(u64::from(mark.len.min(len_max)));
        let mut memory = ChunkTail::alone(len);
        let dst = memory.buffer().get_mut(..len).unwrap_or_default();
        let read = source.read_buffers(wide(at), dst)?;
        let groups = self.groups(mark, dst.get(..read).unwrap_or_default());
        Ok(Loaded { number, memory, groups })
    }

    /// Sound groups from the front on, each where it says that it is.
    fn groups(&self, mark: &Mark, bytes: &[u8]) -> Vec<Known> {
        let block_len = self.geometry.block_len();
        let mut groups = Vec::new();
        let mut at = 0;
        while let Some(group) = bytes.get(at..).and_then(Group::parse) {
            let (header, crc) = (group.header, group.header_crc);
            let end = at + header.padded_len(block_len);
            let is_ours = header.store == self.geometry.store()
                && header.shard == self.geometry.shard()
                && header.position == mark.position.plus(at)
                && header.sequence.get() == mark.sequence.get() + wide(groups.len());
            let is_whole = end <= bytes.len() && group.records().all(|record| record.is_sound());
            if !is_ours || !is_whole {
                break;
            }
            groups.push(Known { header, crc, bytes: at..end });
            at = end;
        }
        if at < bytes.len() {
            tracing::error!(
                shard = self.geometry.shard(),
                position = mark.position.plus(at).get(),
                "a group in shared memory is damaged"
            );
        }
        groups
    }
}

impl Loaded {
    fn follows(&self, at: usize, covered: &Covered, geometry: &Geometry) -> Option<Next> {
        let Known { header, crc, .. } = self.groups.get(at)?;
        let place = geometry.place(header.position)?;
        let rolled = Place { ordinal: covered.next.ordinal + 1, byte: 0 };
        let follows = header.previous == covered.header_crc
            && header.epoch >= covered.epoch
            && (place == covered.next || place == rolled);
        follows.then_some(Next { place, crc: *crc, at })
    }

    fn run_from(&self, next: &Next, geometry: &Geometry) -> (u64, Range<usize>) {
        let (mut count, mut run, mut crc) = (0, 0..0, next.crc);
        for known in self.groups.get(next.at..).unwrap_or_default() {
            let here = geometry.place(known.header.position);
            let is_first = count == 0;
            let same_segment = here.is_some_and(|here| here.ordinal == next.place.ordinal);
            if !is_first && (!same_segment || known.header.previous != crc) {
                break;
            }
            run.start = if is_first { known.bytes.start } else { run.start };
            run.end = known.bytes.end;
            crc = known.crc;
            count += 1;
        }
        (count, run)
    }
}
