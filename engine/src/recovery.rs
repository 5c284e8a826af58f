//! From the files of a shard to its views, after any end of the process before.
//!
//! The log is followed from the group that the checkpoint names. Where the chain of groups breaks,
//! recovery looks on as far as writes could have been in flight. A later group whose committed
//! frontier lies at or above the bad one proves that the bad one was committed: that is damage, it
//! costs the records it touches, and what lies behind it stays. Without such a proof it is the torn
//! tail of writes that nobody was told of, and the log is cut there. A read error is neither: it
//! ends the opening.

use std::{fmt, io};

use crate::format::checkpoint;
use crate::format::group::{Group, HEADER_LEN, Header};
use crate::layout::{Geometry, Place};
use crate::mem::ChunkTail;
use crate::units::{Sequence, index, wide};
use crate::view::{Covered, Views};

/// How far writes can have been in flight behind a bad group: four groups and the largest one.
const LOOK_AHEAD: u64 = 72 << 20;

/// Where recovery reads segments from.
pub(crate) trait LogSource {
    /// Ordinals of the segments that exist, ascending.
    fn ordinals(&self) -> Vec<u64>;
    /// Fills `dst` from byte `at` of a segment; fewer bytes only at the segment's end.
    fn read(&mut self, ordinal: u64, at: u64, dst: &mut [u8]) -> io::Result<usize>;
    /// As `read`, from the queue index.
    fn read_index(&mut self, at: u64, dst: &mut [u8]) -> io::Result<usize>;
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
    saved: Option<&[u8]>,
) -> Result<(Views, RecoveryReport), RecoveryError> {
    let ordinals = source.ordinals();
    // No segment is ever given up, so the log begins with the first one.
    if ordinals.first().is_some_and(|&first| first > 0) {
        return Err(RecoveryError::NoStart(0));
    }
    for pair in ordinals.windows(2) {
        if let [before, behind] = pair
            && before + 1 < *behind
        {
            tracing::error!(shard = geometry.shard(), before, behind, "segments are missing");
        }
    }
    let mut scan = Scan {
        geometry: *geometry,
        window: Window::new(geometry, source),
        last_ordinal: ordinals.last().copied(),
        views: Views::empty(),
        report: RecoveryReport::default(),
        proven: Sequence::default(),
    };
    let decoded = saved.and_then(|bytes| checkpoint::decode(bytes, geometry));
    if saved.is_some() && decoded.is_none() {
        tracing::warn!(shard = geometry.shard(), "the checkpoint is damaged and not used");
    }
    if let Some(views) = decoded {
        scan.proven = views.covered.sequence;
        let mut read = |at, dst: &mut [u8]| scan.window.source.read_index(at, dst);
        let index_is_sound = views.index_is_sound(&mut read);
        if !index_is_sound {
            tracing::error!(
                shard = geometry.shard(),
                "the queue index is damaged; it is rebuilt from the log"
            );
        }
        if index_is_sound && scan.has_group(&views.covered)? {
            scan.views = views;
            scan.report.from_checkpoint = true;
        }
    }
    scan.run()?;
    scan.report.unreadable = scan.views.unreadable;
    Ok((scan.views, scan.report))
}

struct Scan<'a> {
    geometry: Geometry,
    window: Window<'a>,
    last_ordinal: Option<u64>,
    views: Views,
    report: RecoveryReport,
    /// Everything up to here is known to have been committed.
    proven: Sequence,
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
    fn has_group(&mut self, covered: &Covered) -> io::Result<bool> {
        let bytes = self.window.at(covered.place, HEADER_LEN)?;
        Ok(Header::read(bytes).is_some_and(|(header, crc)| {
            crc == covered.header_crc && header.sequence == covered.sequence
        }))
    }

    fn run(&mut self) -> Result<(), RecoveryError> {
        loop {
            let mut place = self.views.covered.next;
            let mut found = self.look(place)?;
            if matches!(found, Found::Nothing) && self.last_ordinal > Some(place.ordinal) {
                let start = Place { ordinal: place.ordinal + 1, byte: 0 };
                let there = self.look(start)?;
                if !matches!(there, Found::Nothing) {
                    (place, found) = (start, there);
                }
            }
            match found {
                Found::Next(padded) => self.apply(place, padded, false)?,
                Found::Broken { .. } | Found::Nothing if !self.is_damage(place)? => {
                    return self.cut(place);
                }
                Found::Broken { readable: true, padded } => {
                    self.note_damage(place);
                    self.apply(place, padded, true)?;
                }
                Found::Broken { .. } | Found::Nothing => {
                    self.note_damage(place);
                    self.skip_from(place)?;
                }
            }
        }
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
        let Some((header, _)) = self.header_at(place)? else { return Ok(Found::Nothing) };
        let covered = self.views.covered;
        let follows = header.sequence == covered.sequence.next()
            && header.previous == covered.header_crc
            && header.epoch >= covered.epoch;
        if !follows {
            return Ok(Found::Nothing);
        }
        let padded = header.padded_len(block_len);
        let group = Group::parse(self.window.at(place, padded)?);
        Ok(match group {
            Some(group) if group.records().all(|record| record.is_sound()) => Found::Next(padded),
            Some(_) => Found::Broken { readable: true, padded },
            None => Found::Broken { readable: false, padded },
        })
    }

    /// A sound header of this store and shard that names this very place.
    fn header_at(&mut self, place: Place) -> io::Result<Option<(Header, u32)>> {
        let Some(position) = self.geometry.position(place) else { return Ok(None) };
        let (store, shard) = (self.geometry.store(), self.geometry.shard());
        let found = Header::read(self.window.at(place, HEADER_LEN)?);
        Ok(found.filter(|(header, _)| {
            header.store == store && header.shard == shard && header.position == position
        }))
    }

    fn apply(&mut self, place: Place, padded: usize, check: bool) -> io::Result<()> {
        let bytes = self.window.at(place, padded)?;
        if let Some(group) = Group::parse(bytes) {
            self.views.apply(&group, place, padded, check, &mut Vec::new());
            self.report.groups += 1;
            self.report.bytes += wide(padded);
        }
        Ok(())
    }

    /// True when something proves that the group expected at `place` was committed.
    fn is_damage(&mut self, place: Place) -> io::Result<bool> {
        let expected = self.expected();
        if self.proven >= expected {
            return Ok(true);
        }
        let mut proven = Sequence::default();
        self.each_later(place, LOOK_AHEAD, |_, header| {
            proven = proven.max(header.committed);
            proven >= expected
        })?;
        self.proven = self.proven.max(proven);
        Ok(proven >= expected)
    }

    /// Goes on at the next group that can be read behind a damaged stretch.
    fn skip_from(&mut self, place: Place) -> Result<(), RecoveryError> {
        let mut next = None;
        let covered = self.views.covered.sequence;
        self.each_later(place, u64::MAX, |place, header| {
            let later = header.sequence > covered;
            if later {
                next = Some((place, *header));
            }
            later
        })?;
        let Some((place, header)) = next else {
            return Err(RecoveryError::Lost { from: self.expected(), committed: self.proven });
        };
        // The chain starts anew here: what the lost groups would have said is taken as given.
        self.views.covered.sequence = Sequence::new(header.sequence.get() - 1);
        self.views.covered.header_crc = header.previous;
        self.views.covered.epoch = self.views.covered.epoch.min(header.epoch);
        self.views.covered.next = place;
        Ok(())
    }

    /// Calls `stop` for every sound header behind `place`, up to `reach` bytes on, until it says
    /// so.
    fn each_later(
        &mut self,
        place: Place,
        reach: u64,
        mut stop: impl FnMut(Place, &Header) -> bool,
    ) -> io::Result<()> {
        let block = wide(self.geometry.block_len());
        let mut left = reach;
        let mut at = Place { byte: place.byte + block, ..place };
        while self.last_ordinal >= Some(at.ordinal) {
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
            at = Place { ordinal: at.ordinal + 1, byte: 0 };
        }
        Ok(())
    }

    fn cut(&mut self, place: Place) -> Result<(), RecoveryError> {
        let start = self.views.covered.next;
        let mut end = start.byte;
        if place.ordinal == start.ordinal {
            end = self.window.last_used(start, LOOK_AHEAD)?;
        }
        self.report.torn_bytes = end.saturating_sub(start.byte);
        if let Some(map) = self.views.maps.get_mut(&start.ordinal) {
            map.cut(start.byte);
        }
        Ok(())
    }
}

/// A stretch of a segment in memory, moved on as recovery goes.
struct Window<'a> {
    source: &'a mut dyn LogSource,
    segment_len: u64,
    memory: ChunkTail,
    ordinal: u64,
    from: u64,
    len: usize,
}

const WINDOW_LEN: usize = 8 << 20;

impl<'a> Window<'a> {
    fn new(geometry: &Geometry, source: &'a mut dyn LogSource) -> Self {
        Self {
            source,
            segment_len: geometry.segment_len(),
            memory: ChunkTail::alone(WINDOW_LEN.min(geometry.group_len_max())),
            ordinal: 0,
            from: 0,
            len: 0,
        }
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
        self.len = if self.source.ordinals().contains(&place.ordinal) {
            self.source.read(place.ordinal, place.byte, dst)?
        } else {
            0
        };
        self.ordinal = place.ordinal;
        self.from = place.byte;
        Ok(())
    }

    /// The end of the last stretch of 4 KiB behind `place` that is not all zeros.
    fn last_used(&mut self, place: Place, reach: u64) -> io::Result<u64> {
        const STEP: usize = 4096;
        let mut end = place.byte;
        let mut at = place;
        while at.byte < self.segment_len && at.byte - place.byte < reach {
            let bytes = self.at(at, STEP)?;
            let piece = bytes.get(..STEP.min(bytes.len())).unwrap_or_default();
            if piece.is_empty() {
                break;
            }
            let len = wide(piece.len());
            if piece.iter().any(|&byte| byte != 0) {
                end = at.byte + len;
            }
            at.byte += len;
        }
        Ok(end)
    }
}
