//! From the files of a shard to its views, after any end of the process before.
//!
//! The views start from the newest of two checkpoints that is sound and whose groups the log has, or
//! empty at the first kept segment. Blocks of the index are not looked at: each is checked when it is
//! read. Then the log is followed. Where the chain of groups breaks,
//! recovery looks on as far as writes could have been in flight. A later group whose committed
//! frontier lies at or above the bad one proves that the bad one was committed: that is damage, it
//! costs the records it touches, and what lies behind it stays. Without such a proof it is the torn
//! tail of writes that nobody was told of, and the log is cut there. A read error is neither: it
//! ends the opening.
//!
//! A group can be whole and chained and be none of the log: see `lives`. A header that tells of one may be
//! found after the group was taken, where damage hid the nearer ones: recovery starts over then.
//!
//! Before each step, what a killed process has left in shared memory goes to its place in the log (see
//! `buffers`), so that the log is followed as if the process had written it all.
//!
//! A checkpoint may know segments that have been recycled since it was written: what the index has of
//! their ends raises the minimum offsets. A segment that is missing where the log says that it begins
//! is refused, since facts may live there; one that is missing or short in the middle costs its
//! records.

mod buffers;
mod lives;

use std::{fmt, io};

use buffers::Buffers;
use lives::Lives;

use crate::format::buffers::Head;
use crate::format::changes;
use crate::format::checkpoint::Checkpoint;
use crate::format::group::{Group, HEADER_LEN, Header};
use crate::format::index_block;
use crate::layout::{Geometry, Place};
use crate::mem::ChunkTail;
use crate::op::FileId;
use crate::shard::{Durable, Repeats, SavedCheckpoints};
use crate::units::{Sequence, index, wide};
use crate::view::index::Index;
use crate::view::{Covered, Views};

/// How far writes can have been in flight behind a bad group: four groups and the largest one.
const LOOK_AHEAD: u64 = 72 << 20;

/// Where recovery reads segments from.
pub(crate) trait LogSource {
    /// Ordinals of the segments that exist, ascending.
    fn ordinals(&self) -> Vec<u64>;
    /// Fills `dst` from byte `at` of a segment; fewer bytes only at the segment's end.
    fn read(&mut self, ordinal: u64, at: u64, dst: &mut [u8]) -> io::Result<usize>;
    /// As `read`, from the index or a changes file.
    fn read_view(&mut self, file: FileId, at: u64, dst: &mut [u8]) -> io::Result<usize>;
    /// How much is read at once; more where a group is longer.
    fn window_len(&self) -> usize {
        8 << 20
    }
    /// Bytes of the index.
    fn index_len(&mut self) -> io::Result<u64>;
    /// One of the two checkpoint files, if it exists.
    fn checkpoint(&mut self, slot: u32) -> io::Result<Option<Vec<u8>>>;
    /// Removes a checkpoint file, durably.
    fn remove_checkpoint(&mut self, slot: u32) -> io::Result<()>;
    /// The head of the file with group buffers that the last life has left, if it counts.
    fn buffers(&mut self) -> io::Result<Option<Head>> {
        Ok(None)
    }
    /// As `read`, from that file.
    fn read_buffers(&mut self, _at: u64, _dst: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
    /// Writes groups to a segment, durably. Memory and place are aligned as for any write of the log.
    fn restore(&mut self, _ordinal: u64, _at: u64, _groups: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What recovery gives to the shard.
pub(crate) struct Recovered {
    pub(crate) views: Views,
    pub(crate) saved: SavedCheckpoints,
    /// What the next groups are to repeat of the last one.
    pub(crate) repeats: Repeats,
    pub(crate) report: RecoveryReport,
    /// The newest life that a header tells of, be its group part of the log or cut off: the next life
    /// must come behind it even when nobody knows the last one any more.
    pub(crate) epoch: u64,
}

/// What recovery found, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// A checkpoint was used.
    pub from_checkpoint: bool,
    /// Groups that were replayed from the log.
    pub groups: u64,
    /// Bytes of log that were replayed.
    pub bytes: u64,
    /// Bytes of the torn tail that were cut: writes that nobody was told of.
    pub torn_bytes: u64,
    /// Places where the log was damaged below the committed frontier.
    pub damaged: u64,
    /// Records that are unreadable for it.
    pub unreadable: u64,
    /// Groups that a killed process had left in shared memory, and that were missing in the log.
    pub restored_groups: u64,
    /// Bytes of these.
    pub restored_bytes: u64,
    /// What may have been acknowledged from shared memory that is gone, in bytes at most: the system
    /// has stopped, or the file was removed. Its queue offsets are given out again.
    pub lost_bytes_max: u64,
}

/// Why recovery stopped.
#[derive(Debug)]
pub(crate) enum RecoveryError {
    Io(io::Error),
    /// The log does not begin with the segment of this ordinal.
    NoStart(u64),
    /// Groups that were committed are gone, and nothing behind them is left to go on from.
    Lost {
        from: Sequence,
        committed: Sequence,
    },
}

impl fmt::Display for RecoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(cause) => write!(f, "the log cannot be read: {cause}"),
            Self::NoStart(first) => write!(
                f,
                "segment {first} is missing, where the log begins; its messages would be lost"
            ),
            Self::Lost { from, committed } => write!(
                f,
                "the log ends before group {from}, but groups up to {committed} were committed"
            ),
        }
    }
}

impl From<io::Error> for RecoveryError {
    fn from(cause: io::Error) -> Self {
        Self::Io(cause)
    }
}

/// Rebuilds a shard's views.
pub(crate) fn recover(
    geometry: &Geometry,
    source: &mut dyn LogSource,
) -> Result<Recovered, RecoveryError> {
    let ordinals = source.ordinals();
    let gap = ordinals.windows(2).rposition(|pair| matches!(pair, [a, b] if a + 1 < *b));
    let behind = gap.and_then(|at| ordinals.get(at + 1..)).unwrap_or_default();
    if let Some(&start) = behind.first() {
        // Retention lets segments go one by one, but they leave the device in any order: what is in
        // front of a gap is left over when nothing lives in front of it.
        match recover_from(geometry, source, behind.to_vec()) {
            Ok(recovered) if recovered.views.trimmed >= start => {
                return forget_rejected(source, recovered);
            }
            Err(RecoveryError::Io(cause)) => return Err(cause.into()),
            Ok(_) | Err(_) => {}
        }
        tracing::error!(shard = geometry.shard(), behind = start, "segments are missing");
    }
    let recovered = recover_from(geometry, source, ordinals)?;
    forget_rejected(source, recovered)
}

/// A checkpoint that was passed over, because something that it names is missing or damaged, must never
/// count again: the files that it names go on growing from an older one, or anew, until they look
/// whole to it, with other things in the places that it knows.
fn forget_rejected(
    source: &mut dyn LogSource,
    recovered: Recovered,
) -> Result<Recovered, RecoveryError> {
    for (slot, _) in (0..).zip(recovered.saved.rejected).filter(|&(_, rejected)| rejected) {
        source.remove_checkpoint(slot)?;
    }
    Ok(recovered)
}

/// As [`recover`], from these segments.
fn recover_from(
    geometry: &Geometry,
    source: &mut dyn LogSource,
    ordinals: Vec<u64>,
) -> Result<Recovered, RecoveryError> {
    let mut known = Known::default();
    loop {
        if let Some(recovered) = attempt(geometry, source, ordinals.clone(), &mut known)? {
            return Ok(recovered);
        }
        tracing::warn!(
            shard = geometry.shard(),
            "a group that was cut off was taken for one of the log; recovery starts over"
        );
    }
}

/// What outlives an attempt that has to be made again.
#[derive(Default)]
struct Known {
    lives: Lives,
    restored_groups: u64,
    restored_bytes: u64,
}

/// As [`recover_from`]. `None` when it has turned out on the way that a group was taken which is none of the
/// log: more is known of the lives that wrote it then, and the next attempt will not take that one.
fn attempt(
    geometry: &Geometry,
    source: &mut dyn LogSource,
    ordinals: Vec<u64>,
    known: &mut Known,
) -> Result<Option<Recovered>, RecoveryError> {
    let index_len = source.index_len()?;
    let first = ordinals.first().copied().unwrap_or(0);
    let buffers = Buffers::find(geometry, source)?;
    let mut scan = Scan {
        geometry: *geometry,
        buffers,
        window: Window::new(geometry, source, ordinals),
        views: Views::empty(first, Index::behind(index_len)),
        report: RecoveryReport {
            restored_groups: known.restored_groups,
            restored_bytes: known.restored_bytes,
            ..RecoveryReport::default()
        },
        proven: Sequence::default(),
        first_of_next: None,
        epoch: 0,
        lives: std::mem::take(&mut known.lives),
        taken: (Sequence::default(), 0),
        torn: None,
    };
    let saved = scan.use_checkpoint()?;
    if !scan.report.from_checkpoint {
        scan.begin()?;
    }
    if !scan.run()? {
        let RecoveryReport { restored_groups, restored_bytes, .. } = scan.report;
        *known = Known { lives: scan.lives, restored_groups, restored_bytes };
        return Ok(None);
    }
    if first > scan.views.trimmed {
        return Err(RecoveryError::NoStart(scan.views.trimmed));
    }
    scan.views.settle();
    scan.report.unreadable = scan.views.unreadable;
    let repeats = scan.repeats()?;
    let epoch = scan.epoch.max(scan.views.covered.epoch);
    Ok(Some(Recovered { views: scan.views, saved, repeats, report: scan.report, epoch }))
}

struct Scan<'a> {
    geometry: Geometry,
    buffers: Buffers,
    window: Window<'a>,
    views: Views,
    report: RecoveryReport,
    /// Everything up to here is known to have been committed.
    proven: Sequence,
    /// A segment and the header of its first group.
    first_of_next: Option<(u64, Option<Header>)>,
    /// The newest one of a header behind the end.
    epoch: u64,
    /// Of all headers that were looked at, and of checkpoints.
    lives: Lives,
    /// The last group that was taken for one of the log, and the life that wrote it.
    taken: (Sequence, u64),
    /// A place behind which nothing was proven, and how far groups of this life reach there.
    torn: Option<(Place, u64)>,
}

/// What stands at a place.
enum Found {
    /// The next group, whole; the number is its padded length.
    Next(usize),
    /// The next group by its header, with damage in its table or records.
    Broken {
        readable: bool,
        padded: usize,
    },
    Nothing,
}

impl Scan<'_> {
    /// Takes the views from the newest checkpoint that can be used, if one can.
    fn use_checkpoint(&mut self) -> Result<SavedCheckpoints, RecoveryError> {
        let mut saved = SavedCheckpoints::default();
        let mut found = Vec::new();
        for slot in [0, 1] {
            let Some(bytes) = self.window.source.checkpoint(slot)? else { continue };
            match Checkpoint::decode(&bytes, &self.geometry) {
                Some(checkpoint) => found.push((slot, checkpoint)),
                None => tracing::warn!(
                    shard = self.geometry.shard(),
                    slot,
                    "a checkpoint is damaged and not used"
                ),
            }
        }
        found.sort_unstable_by_key(|(_, checkpoint)| std::cmp::Reverse(checkpoint.number));
        for (slot, checkpoint) in found {
            saved.number = saved.number.max(checkpoint.number);
            self.proven = self.proven.max(checkpoint.through.sequence);
            for known in [checkpoint.from, checkpoint.through] {
                self.lives.note(known.sequence, known.epoch);
            }
            let in_log =
                self.has_group(&checkpoint.from)? && self.has_group(&checkpoint.through)?;
            if !in_log {
                continue;
            }
            if saved.changes.is_none() {
                let Some(views) = self.load(&checkpoint)? else {
                    if let Some(rejected) = saved.rejected.get_mut(index(u64::from(slot))) {
                        *rejected = true;
                    }
                    continue;
                };
                self.views = views;
                self.report.from_checkpoint = true;
                saved.changes = Some(checkpoint.changes);
                saved.covered = Some(checkpoint.from.sequence);
            }
            if let Some(durable) = saved.slots.get_mut(index(u64::from(slot))) {
                *durable = Some(Durable::of(&checkpoint));
            }
        }
        Ok(saved)
    }

    /// The views that a checkpoint tells, or `None` when a part of it is damaged.
    fn load(&mut self, checkpoint: &Checkpoint) -> io::Result<Option<Views>> {
        let first = self.window.ordinals.first().copied().unwrap_or(0).max(checkpoint.first);
        let index = Index::restored(checkpoint.index_next, checkpoint.index_discarded);
        let mut views = Views::empty(checkpoint.first, index);
        let whole = self.window.source.index_len()? >= checkpoint.index_next
            && self.load_changes(checkpoint, &mut views)?
            && self.let_go(&mut views, checkpoint.first..first)?;
        if !whole {
            tracing::warn!(shard = self.geometry.shard(), "a checkpoint is damaged and not used");
            return Ok(None);
        }
        views.forget_before_first();
        views.covered = checkpoint.from;
        views.trimmed = checkpoint.trimmed;
        views.go_on_from(checkpoint.from.place.ordinal);
        views.settle();
        Ok(Some(views))
    }

    fn load_changes(&mut self, checkpoint: &Checkpoint, views: &mut Views) -> io::Result<bool> {
        let end = checkpoint.changes;
        let pieces = (self.window.source.window_len() / changes::PIECE_LEN).max(1);
        let mut window = ChunkTail::alone(pieces * changes::PIECE_LEN);
        let mut told = Vec::new();
        let mut at = 0;
        while at < end.len {
            let file = FileId::Changes(end.file);
            let len = self.window.source.read_view(file, at, window.buffer())?;
            let mut rest = window.buffer().get(..len).unwrap_or_default();
            let before = at;
            while at < end.len
                && let Some((payload, padded)) =
                    changes::parse_piece(rest, &self.geometry, end.generation, at)
            {
                told.extend_from_slice(payload);
                rest = rest.get(padded..).unwrap_or_default();
                at += wide(padded);
                let Some(taken) = changes::take_items(&told, views) else { return Ok(false) };
                told.drain(..taken);
            }
            if at == before {
                return Ok(false);
            }
        }
        Ok(at == end.len && told.is_empty())
    }

    /// Raises minimum offsets for segments that were recycled after the checkpoint.
    fn let_go(&mut self, views: &mut Views, gone: std::ops::Range<u64>) -> io::Result<bool> {
        for ordinal in gone {
            let blocks = views.ends.segment(ordinal).map(|ends| ends.blocks.clone());
            let Some(blocks) = blocks else { return Ok(false) };
            for (part, block) in (0..).zip(blocks) {
                let head = block.head(ordinal, part);
                let (from, len) = views.index.stretch(block.at);
                let mut piece = ChunkTail::alone(len);
                let dst = piece.buffer().get_mut(..len).unwrap_or_default();
                self.window.source.read_view(FileId::Index, from, dst)?;
                let at = index(block.at - from);
                let bytes = piece.buffer().get(at..at + head.len()).unwrap_or_default();
                if !index_block::is_sound(bytes, &head) {
                    return Ok(false);
                }
                for (number, end) in index_block::ends(bytes) {
                    views.raise_min(number, end);
                }
            }
            views.drop_segment(ordinal);
        }
        Ok(true)
    }

    fn has_group(&mut self, covered: &Covered) -> io::Result<bool> {
        let bytes = self.window.at(covered.place, HEADER_LEN)?;
        Ok(Header::read(bytes).is_some_and(|(header, crc)| {
            crc == covered.header_crc && header.sequence == covered.sequence
        }))
    }

    /// Finds where the log begins. Its first group follows one that was recycled.
    fn begin(&mut self) -> io::Result<()> {
        let start = self.views.covered.next;
        if start.ordinal == 0 {
            return Ok(());
        }
        let mut found = self.header_at(start)?.map(|(header, _)| (start, header));
        if found.is_none() {
            found = self.next_behind(start)?;
            self.note_damage(start);
        }
        if let Some((place, header)) = found {
            self.start_before(place, &header);
        }
        Ok(())
    }

    /// The chain starts anew here: what went before is taken as given.
    fn start_before(&mut self, place: Place, header: &Header) {
        let covered = &mut self.views.covered;
        covered.sequence = Sequence::new(header.sequence.get() - 1);
        covered.header_crc = header.previous;
        covered.epoch = covered.epoch.min(header.epoch);
        covered.next = place;
    }

    /// Follows the log to its end. False when a group was taken on the way that is none of the log.
    fn run(&mut self) -> Result<bool, RecoveryError> {
        loop {
            self.restore()?;
            let mut place = self.views.covered.next;
            if self.rolled_at(place)? {
                place = Place { ordinal: place.ordinal + 1, byte: 0 };
            }
            match self.look(place)? {
                Found::Next(padded) => self.apply(place, padded, false)?,
                Found::Broken { .. } | Found::Nothing if !self.is_damage(place)? => {
                    if self.has_taken_left_over() {
                        return Ok(false);
                    }
                    self.cut()?;
                    return Ok(true);
                }
                Found::Broken { readable: true, padded } => {
                    self.note_damage(place);
                    self.apply(place, padded, true)?;
                }
                Found::Broken { .. } | Found::Nothing => {
                    let next = self.next_behind(place)?;
                    if self.has_taken_left_over() {
                        return Ok(false);
                    }
                    self.note_damage(place);
                    self.skip_to(next)?;
                }
            }
        }
    }

    /// Writes the groups that come next to the log, if they lie in shared memory and it lacks them.
    fn restore(&mut self) -> io::Result<()> {
        let source = &mut *self.window.source;
        let Some(next) = self.buffers.behind(&self.views.covered, source)? else { return Ok(()) };
        let place = next.place;
        let there = self.header_at(place)?.is_some_and(|(_, crc)| crc == next.crc);
        if there && matches!(self.look(place)?, Found::Next(_)) {
            return Ok(());
        }
        let (bytes, groups) = self.buffers.run_from(&next);
        self.window.restore(place, bytes)?;
        self.first_of_next = None;
        self.report.restored_groups += groups;
        self.report.restored_bytes += wide(bytes.len());
        Ok(())
    }

    fn note_damage(&mut self, place: Place) {
        self.report.damaged += 1;
        tracing::error!(
            shard = self.geometry.shard(),
            segment = place.ordinal,
            byte = place.byte,
            "a committed group is damaged"
        );
    }

    fn expected(&self) -> Sequence {
        self.views.covered.sequence.next()
    }

    /// Is the group at this place the one that follows what is covered?
    fn look(&mut self, place: Place) -> io::Result<Found> {
        let block_len = self.geometry.block_len();
        let header = self.header_at(place)?.map(|(header, _)| header);
        let Some(header) = header.filter(|header| self.follows(header)) else {
            return Ok(Found::Nothing);
        };
        let padded = header.padded_len(block_len);
        let group = Group::parse(self.window.at(place, padded)?);
        Ok(match group {
            Some(group) if group.records().all(|record| record.is_sound()) => Found::Next(padded),
            Some(_) => Found::Broken { readable: true, padded },
            None => Found::Broken { readable: false, padded },
        })
    }

    /// Whether the last group that was taken has turned out to be left over.
    fn has_taken_left_over(&self) -> bool {
        let (sequence, epoch) = self.taken;
        self.lives.passed(sequence, epoch)
    }

    fn follows(&self, header: &Header) -> bool {
        let covered = self.views.covered;
        !self.lives.left_over(header)
            && header.sequence == covered.sequence.next()
            && header.previous == covered.header_crc
    }

    /// True when the log goes on at the start of the next segment instead of at this place.
    ///
    /// A group that an earlier life left here, torn or cut off, can have been followed by one of the
    /// same sequence that no longer fitted, or the other way round: one of the two is left over. Where the
    /// header here is gone, what lies behind it tells of its life.
    fn rolled_at(&mut self, place: Place) -> io::Result<bool> {
        let Some(there) = self.first_of(place.ordinal + 1)?.filter(|header| self.follows(header))
        else {
            return Ok(false);
        };
        let here = self.header_at(place)?.map(|(header, _)| header);
        if here.is_some_and(|header| self.follows(&header)) {
            return Ok(false);
        }
        self.each_later(place, u64::MAX, |at, _| at.ordinal > place.ordinal)?;
        Ok(self.follows(&there))
    }

    /// The header of a segment's first group. It is kept, since every group before it is compared.
    fn first_of(&mut self, ordinal: u64) -> io::Result<Option<Header>> {
        const PROBE_LEN: usize = 4096;
        if let Some((known, header)) = self.first_of_next
            && known == ordinal
        {
            return Ok(header);
        }
        let place = Place { ordinal, byte: 0 };
        let mut header = None;
        if self.window.ordinals.binary_search(&ordinal).is_ok() {
            let mut probe = ChunkTail::alone(PROBE_LEN);
            let len = self.window.source.read(ordinal, 0, probe.buffer())?;
            let found = Header::read(probe.buffer().get(..len).unwrap_or_default());
            header = found.map(|(header, _)| header).filter(|header| self.is_at(header, place));
        }
        if let Some(header) = &header {
            self.lives.note_header(header);
        }
        self.first_of_next = Some((ordinal, header));
        Ok(header)
    }

    /// A sound header of this store and shard that names this very place.
    fn header_at(&mut self, place: Place) -> io::Result<Option<(Header, u32)>> {
        let found = Header::read(self.window.at(place, HEADER_LEN)?);
        let found = found.filter(|(header, _)| self.is_at(header, place));
        if let Some((header, _)) = &found {
            self.lives.note_header(header);
        }
        Ok(found)
    }

    fn is_at(&self, header: &Header, place: Place) -> bool {
        header.store == self.geometry.store()
            && header.shard == self.geometry.shard()
            && Some(header.position) == self.geometry.position(place)
    }

    fn apply(&mut self, place: Place, padded: usize, check: bool) -> io::Result<()> {
        let bytes = self.window.at(place, padded)?;
        if let Some(group) = Group::parse(bytes) {
            self.views.apply(&group, place, padded, check, &mut Vec::new());
            self.views.apply_ends(&group);
            self.taken = (group.header.sequence, group.header.epoch);
            self.report.groups += 1;
            self.report.bytes += wide(padded);
        }
        Ok(())
    }

    /// What the last group would have had repeated.
    fn repeats(&mut self) -> io::Result<Repeats> {
        let Covered { place, header_crc, .. } = self.views.covered;
        let Some((header, crc)) = self.header_at(place)? else { return Ok(Repeats::default()) };
        let bytes = self.window.at(place, header.padded_len(self.geometry.block_len()))?;
        let group = Group::parse(bytes).filter(|_| crc == header_crc);
        Ok(Repeats::behind(group.as_ref()))
    }

    /// True when something proves that the group expected at `place` was committed.
    fn is_damage(&mut self, place: Place) -> io::Result<bool> {
        let expected = self.expected();
        if self.proven >= expected {
            return Ok(true);
        }
        let (block_len, life) = (self.geometry.block_len(), self.views.covered.epoch);
        let (mut proven, mut torn_end, mut epoch) = (Sequence::default(), place.byte, 0);
        if let Some((header, _)) = self.header_at(place)? {
            torn_end = end_of(place, &header, block_len);
            epoch = header.epoch;
        }
        self.each_later(place, LOOK_AHEAD, |at, header| {
            // A recycled segment is full of old bytes: only headers tell what was written here.
            if at.ordinal == place.ordinal && header.epoch >= life {
                torn_end = torn_end.max(end_of(at, header, block_len));
            }
            proven = proven.max(header.committed);
            epoch = epoch.max(header.epoch);
            proven >= expected
        })?;
        self.epoch = self.epoch.max(epoch);
        self.torn = Some((place, torn_end));
        if proven < expected {
            proven = self.proven_by_later_segments(place.ordinal)?;
        }
        self.proven = self.proven.max(proven);
        Ok(proven >= expected)
    }

    /// The newest frontier that the first group of a later segment names: more than the look ahead
    /// may be damaged.
    fn proven_by_later_segments(&mut self, ordinal: u64) -> io::Result<Sequence> {
        const PROBE_LEN: usize = 4096;
        let mut proven = Sequence::default();
        let mut probe = ChunkTail::alone(PROBE_LEN);
        let later: Vec<u64> =
            self.window.ordinals.iter().copied().filter(|&later| later > ordinal).collect();
        for ordinal in later {
            let len = self.window.source.read(ordinal, 0, probe.buffer())?;
            let header = Header::read(probe.buffer().get(..len).unwrap_or_default());
            let place = Place { ordinal, byte: 0 };
            if let Some((header, _)) = header.filter(|(header, _)| self.is_at(header, place)) {
                self.lives.note_header(&header);
                proven = proven.max(header.committed);
            }
        }
        Ok(proven)
    }

    /// Goes on at the next group that can be read behind a damaged stretch.
    fn skip_to(&mut self, next: Option<(Place, Header)>) -> Result<(), RecoveryError> {
        let Some((place, header)) = next else {
            return Err(RecoveryError::Lost { from: self.expected(), committed: self.proven });
        };
        self.start_before(place, &header);
        Ok(())
    }

    /// The next group of the log behind a place that has no group to go on from.
    ///
    /// Not every header there is one of the log: behind its end, a life may have left groups that were
    /// cut off, and the next life may have gone on in the next segment. So the first one found counts only
    /// when nothing tells against it as far as writes reach.
    fn next_behind(&mut self, place: Place) -> io::Result<Option<(Place, Header)>> {
        let sequence = self.views.covered.sequence;
        let segment_len = self.geometry.segment_len();
        loop {
            let lives = self.lives.clone();
            let mut next: Option<(Place, Header)> = None;
            self.each_later(place, u64::MAX, |at, header| {
                let Some((from, _)) = &next else {
                    let later = header.sequence > sequence && !lives.left_over(header);
                    next = later.then_some((at, *header));
                    return false;
                };
                let distance = (at.ordinal - from.ordinal) * segment_len + at.byte;
                distance > from.byte + LOOK_AHEAD
            })?;
            if next.is_none_or(|(_, header)| !self.lives.left_over(&header)) {
                return Ok(next);
            }
        }
    }

    /// Calls `stop` for every sound header behind `place`, up to `reach` bytes on, until it says
    /// so. Segments that do not exist are passed over.
    fn each_later(
        &mut self,
        place: Place,
        reach: u64,
        mut stop: impl FnMut(Place, &Header) -> bool,
    ) -> io::Result<()> {
        let block = wide(self.geometry.block_len());
        let mut left = reach;
        let later: Vec<u64> =
            self.window.ordinals.iter().copied().filter(|&later| later >= place.ordinal).collect();
        for ordinal in later {
            let byte = if ordinal == place.ordinal { place.byte + block } else { 0 };
            let mut at = Place { ordinal, byte };
            while at.byte + block <= self.geometry.segment_len() {
                if left < block {
                    return Ok(());
                }
                left -= block;
                if let Some((header, _)) = self.header_at(at)?
                    && stop(at, &header)
                {
                    return Ok(());
                }
                at.byte += block;
            }
        }
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        let start = self.views.covered.next;
        let end = match self.torn {
            Some((looked_from, end)) if looked_from == start => end,
            // The log was to go on in the next segment: at most one group is left over here.
            _ => match self.header_at(start)? {
                Some((header, _)) => {
                    self.epoch = self.epoch.max(header.epoch);
                    end_of(start, &header, self.geometry.block_len())
                }
                None => start.byte,
            },
        };
        self.report.torn_bytes = end.saturating_sub(start.byte);
        let left = self.buffers.newest_start();
        if let Some(left) = left.filter(|left| *left > self.views.covered.sequence) {
            tracing::error!(
                shard = self.geometry.shard(),
                from = %left,
                log_end = %self.views.covered.sequence,
                "groups in shared memory do not follow the log and are given up"
            );
        }
        if let Some(map) = self.views.maps.get_mut(&start.ordinal) {
            map.cut(start.byte);
        }
        Ok(())
    }
}

/// Where the group at a place ends.
fn end_of(at: Place, header: &Header, block_len: usize) -> u64 {
    at.byte + wide(header.padded_len(block_len))
}

/// A stretch of a segment in memory, moved on as recovery goes.
struct Window<'a> {
    source: &'a mut dyn LogSource,
    /// Of the segments that exist, ascending.
    ordinals: Vec<u64>,
    segment_len: u64,
    memory: ChunkTail,
    ordinal: u64,
    from: u64,
    len: usize,
}

impl<'a> Window<'a> {
    fn new(geometry: &Geometry, source: &'a mut dyn LogSource, ordinals: Vec<u64>) -> Self {
        let len = source.window_len().min(geometry.group_len_max());
        Self {
            source,
            ordinals,
            segment_len: geometry.segment_len(),
            memory: ChunkTail::alone(len),
            ordinal: 0,
            from: 0,
            len: 0,
        }
    }

    /// Writes groups to the log; they are found there from now on.
    fn restore(&mut self, place: Place, groups: &[u8]) -> io::Result<()> {
        self.source.restore(place.ordinal, place.byte, groups)?;
        let at = place.byte.checked_sub(self.from).map(index);
        let known = self.ordinal == place.ordinal && place.byte < self.from + wide(self.len);
        let Some(at) = at.filter(|_| known) else {
            self.len = 0;
            return Ok(());
        };
        let memory = self.memory.buffer().get_mut(..self.len).unwrap_or_default();
        match memory.get_mut(at..at + groups.len()) {
            Some(dst) => dst.copy_from_slice(groups),
            None => self.len = at,
        }
        Ok(())
    }

    /// The bytes from `place` on: at least `len` of them unless the segment ends before.
    fn at(&mut self, place: Place, len: usize) -> io::Result<&[u8]> {
        let here = self.ordinal == place.ordinal
            && self.from <= place.byte
            && place.byte + wide(len) <= self.from + wide(self.len);
        if !here {
            self.fill(place, len)?;
        }
        let skip = index(place.byte.saturating_sub(self.from));
        let bytes = self.memory.buffer().get(..self.len).unwrap_or_default();
        Ok(bytes.get(skip..).unwrap_or_default())
    }

    fn fill(&mut self, place: Place, len: usize) -> io::Result<()> {
        let left = index(self.segment_len.saturating_sub(place.byte));
        if len > self.memory.room() && len <= left {
            self.memory = ChunkTail::alone(len.next_multiple_of(4096));
        }
        let wanted = self.memory.room().min(left);
        let dst = self.memory.buffer().get_mut(..wanted).unwrap_or_default();
        self.len = if self.ordinals.binary_search(&place.ordinal).is_ok() {
            self.source.read(place.ordinal, place.byte, dst)?
        } else {
            0
        };
        self.ordinal = place.ordinal;
        self.from = place.byte;
        Ok(())
    }
}
