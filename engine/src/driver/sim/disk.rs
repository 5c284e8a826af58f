//! What a simulated device keeps: segments, the index file, the checkpoint and the epoch.
//!
//! A write is a run of sectors; a life that ends leaves any subset of the sectors that were under
//! way. Space that a segment has only reserved reads as zeros until a write to it completes, and
//! goes back to zeros when the file system had not noted that write: sectors may have reached the
//! device, but nobody will ever see them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use super::random::Random;
use super::tally::{Event, Tally};
use crate::format::buffers::Head;
use crate::format::checkpoint::Checkpoint;
use crate::format::group::{Group, Header};
use crate::format::manifest::Manifest;
use crate::layout::{Geometry, Place};
use crate::op::FileId;
use crate::recovery::LogSource;
use crate::shard::Acknowledge;
use crate::units::{Sequence, index, wide};

pub(super) const SECTOR: usize = 512;
/// The unit in which a file system notes that reserved space has been written.
const PAGE: usize = 4096;

#[derive(Clone)]
struct Segment {
    bytes: Vec<u8>,
    /// Which pages are more than reserved.
    converted: Vec<bool>,
}

impl Segment {
    fn new(len: u64) -> Self {
        let pages = index(len).div_ceil(PAGE);
        Self { bytes: vec![0; index(len)], converted: vec![false; pages] }
    }

    /// Bytes up to the first hole.
    fn prepared(&self) -> u64 {
        let pages = self.converted.iter().take_while(|&&page| page).count();
        wide((pages * PAGE).min(self.bytes.len()))
    }
}

/// One shard's part of a simulated device, across lives.
#[derive(Clone)]
pub(super) struct SimDisk {
    manifest: Manifest,
    shard: u32,
    segments: BTreeMap<u64, Segment>,
    index: Vec<u8>,
    changes: [Vec<u8>; 2],
    pub(super) checkpoints: [Option<Vec<u8>>; 2],
    pub(super) epoch: Option<u64>,
    /// Number of the system's run.
    boot: u128,
    /// The file of group buffers, as the last life has left it.
    pub(super) shared: Option<Vec<u8>>,
    pub(super) random: Random,
    pub(super) tally: Tally,
    /// The read that fails, counted from now, while recovery reads.
    pub(super) fail_read: Option<usize>,
}

/// What stood where something was written, and how long the file was.
pub(super) struct Undo {
    file: FileId,
    at: u64,
    old: Vec<u8>,
    len: usize,
}

/// A group as it stands on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) place: Place,
    pub(super) header: Header,
    pub(super) header_crc: u32,
    pub(super) padded: usize,
}

impl LogSource for SimDisk {
    fn ordinals(&self) -> Vec<u64> {
        self.segments.keys().copied().collect()
    }

    fn read(&mut self, ordinal: u64, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        self.may_fail()?;
        Ok(copy(self.bytes_at(FileId::Segment(ordinal), at), dst))
    }

    fn read_view(&mut self, file: FileId, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        self.may_fail()?;
        Ok(copy(self.bytes_at(file, at), dst))
    }

    /// Little, so that most of it is looked at, and windows end within groups.
    fn window_len(&self) -> usize {
        64 << 10
    }

    fn index_len(&mut self) -> io::Result<u64> {
        Ok(wide(self.index.len()))
    }

    fn checkpoint(&mut self, slot: u32) -> io::Result<Option<Vec<u8>>> {
        self.may_fail()?;
        Ok(self.checkpoints.get(index(u64::from(slot))).cloned().flatten())
    }

    fn remove_checkpoint(&mut self, slot: u32) -> io::Result<()> {
        self.may_fail()?;
        self.checkpoints.get_mut(index(u64::from(slot))).map(Option::take);
        Ok(())
    }

    fn buffers(&mut self) -> io::Result<Option<Head>> {
        let head = self.shared.as_deref().and_then(Head::decode);
        Ok(head.filter(|head| head.counts(&self.geometry(), self.boot, self.epoch)))
    }

    fn read_buffers(&mut self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        let bytes = self.shared.as_ref().and_then(|bytes| bytes.get(index(at)..));
        Ok(copy(bytes.unwrap_or_default(), dst))
    }

    fn restore(&mut self, ordinal: u64, at: u64, groups: &[u8]) -> io::Result<()> {
        self.may_fail()?;
        self.tally.count(Event::Restored);
        if !self.segments.contains_key(&ordinal) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.write(FileId::Segment(ordinal), at, groups);
        Ok(())
    }
}

pub(super) fn copy(src: &[u8], dst: &mut [u8]) -> usize {
    let len = src.len().min(dst.len());
    if let (Some(dst), Some(src)) = (dst.get_mut(..len), src.get(..len)) {
        dst.copy_from_slice(src);
    }
    len
}

pub(super) fn io_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl SimDisk {
    /// The empty device of one shard of a store.
    pub(super) fn new(manifest: Manifest, shard: u32, random: Random) -> Self {
        Self {
            manifest,
            shard,
            segments: BTreeMap::new(),
            index: Vec::new(),
            changes: [const { Vec::new() }; 2],
            checkpoints: [const { None }; 2],
            epoch: None,
            boot: 1,
            shared: None,
            random,
            tally: Tally::default(),
            fail_read: None,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry::new(&self.manifest, self.shard)
    }

    /// What has happened to this device so far.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// When appends to the store count as acknowledged from the next life on.
    pub(super) fn set_acknowledge(&mut self, acknowledge: Acknowledge) {
        self.manifest.acknowledge = acknowledge;
    }

    pub(super) fn acknowledge(&self) -> Acknowledge {
        self.manifest.acknowledge
    }

    /// The head of the buffers of a life that begins.
    pub(super) fn head(&self, epoch: u64, pool: (usize, usize)) -> Head {
        crate::format::buffers::head(&self.geometry(), self.boot, epoch, pool)
    }

    /// Whether the last life has left buffers that count.
    pub(super) fn has_buffers(&self) -> bool {
        let head = self.shared.as_deref().and_then(Head::decode);
        head.is_some_and(|head| head.counts(&self.geometry(), self.boot, self.epoch))
    }

    /// The system starts again: what was in memory is gone, or is that of another run.
    pub(super) fn reboot(&mut self) {
        self.boot += 1;
        if self.random.one_in(2) {
            self.shared = None;
        }
    }

    fn may_fail(&mut self) -> io::Result<()> {
        match &mut self.fail_read {
            Some(0) => {
                self.fail_read = None;
                self.tally.count(Event::OpenReadError);
                Err(io_error())
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Each segment with the bytes of it that are prepared.
    pub(super) fn prepared(&self) -> Vec<(u64, u64)> {
        self.segments.iter().map(|(&ordinal, segment)| (ordinal, segment.prepared())).collect()
    }

    pub(super) fn segment_count(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn create(&mut self, ordinal: u64, len: u64) {
        self.segments.insert(ordinal, Segment::new(len));
    }

    pub(super) fn has_segment(&self, ordinal: u64) -> bool {
        self.segments.contains_key(&ordinal)
    }

    /// Gives a segment another name, with all that was ever written to it.
    pub(super) fn recycle(&mut self, from: u64, to: u64) -> io::Result<()> {
        let segment = self.segments.remove(&from).ok_or(io::ErrorKind::NotFound)?;
        self.tally.count(Event::Recycled);
        self.segments.insert(to, segment);
        Ok(())
    }

    pub(super) fn remove(&mut self, ordinal: u64) {
        self.tally.count(Event::Removed);
        self.segments.remove(&ordinal);
    }

    /// Bytes that nobody reads again read as zeros.
    pub(super) fn discard(&mut self, file: FileId, at: u64, len: u64) {
        self.tally.count(Event::Discarded);
        let range = index(at)..index(at + len);
        if let Some(bytes) = self.bytes_mut(file) {
            let range = range.start.min(bytes.len())..range.end.min(bytes.len());
            bytes.get_mut(range).unwrap_or_default().fill(0);
        }
    }

    pub(super) fn bytes_at(&self, file: FileId, at: u64) -> &[u8] {
        let bytes = match file {
            FileId::Segment(ordinal) => self.segments.get(&ordinal).map(|segment| &segment.bytes),
            FileId::Index => Some(&self.index),
            FileId::Changes(number) => self.changes.get(index(u64::from(number))),
        };
        bytes.and_then(|bytes| bytes.get(index(at)..)).unwrap_or_default()
    }

    fn bytes_mut(&mut self, file: FileId) -> Option<&mut Vec<u8>> {
        match file {
            FileId::Segment(ordinal) => {
                self.segments.get_mut(&ordinal).map(|segment| &mut segment.bytes)
            }
            FileId::Index => Some(&mut self.index),
            FileId::Changes(number) => self.changes.get_mut(index(u64::from(number))),
        }
    }

    /// A write that is durable from now on.
    pub(super) fn write(&mut self, file: FileId, at: u64, data: &[u8]) {
        let (start, end) = (index(at), index(at) + data.len());
        if let FileId::Segment(ordinal) = file {
            let pages = start / PAGE..end.div_ceil(PAGE);
            let segment = self.segments.get_mut(&ordinal);
            if let Some(pages) = segment.and_then(|segment| segment.converted.get_mut(pages)) {
                pages.fill(true);
            }
        }
        let Some(bytes) = self.bytes_mut(file) else { return };
        if bytes.len() < end && !matches!(file, FileId::Segment(_)) {
            bytes.resize(end, 0);
        }
        if let Some(dst) = bytes.get_mut(start..end) {
            dst.copy_from_slice(data);
        }
    }

    /// As [`write`](Self::write), and what takes it back. The last one goes first.
    pub(super) fn write_with_undo(&mut self, file: FileId, at: u64, data: &[u8]) -> Undo {
        let len = self.len(file);
        let old = self.bytes_at(file, at);
        let old = old.get(..data.len().min(old.len())).unwrap_or_default().to_vec();
        self.write(file, at, data);
        Undo { file, at, old, len }
    }

    pub(super) fn undo(&mut self, undo: Undo) {
        let Undo { file, at, old, len } = undo;
        let Some(bytes) = self.bytes_mut(file) else { return };
        bytes.truncate(len);
        copy(&old, bytes.get_mut(index(at)..).unwrap_or_default());
    }

    /// What a write under way at the end of a life leaves behind.
    pub(super) fn tear(&mut self, file: FileId, at: u64, data: &[u8]) {
        if self.loses_conversion(file, at, data.len()) {
            self.tally.count(Event::Unconverted);
            return;
        }
        match self.random.below(4) {
            0 => self.tally.count(Event::Lost),
            1 => {
                self.tally.count(Event::Landed);
                self.write(file, at, data);
            }
            kind => {
                self.tally.count(Event::Torn);
                self.tear_sectors(file, at, data, kind == 2);
            }
        }
    }

    /// Any subset of the sectors, or all but a few: the second finds checks that look at the ends
    /// of a group only.
    fn tear_sectors(&mut self, file: FileId, at: u64, data: &[u8], any: bool) {
        let sectors = data.len().div_ceil(SECTOR);
        let missing = self.random.below(sectors);
        for (n, sector) in data.chunks(SECTOR).enumerate() {
            let lands = if any { self.random.one_in(2) } else { n != missing };
            if lands {
                self.write(file, at + wide(n * SECTOR), sector);
            }
        }
    }

    fn loses_conversion(&mut self, file: FileId, at: u64, len: usize) -> bool {
        let FileId::Segment(ordinal) = file else { return false };
        let pages = index(at) / PAGE..(index(at) + len).div_ceil(PAGE);
        let reserved = self.segments.get(&ordinal).is_none_or(|segment| {
            segment.converted.get(pages).is_none_or(|pages| pages.contains(&false))
        });
        reserved && self.random.one_in(2)
    }

    /// Drops both checkpoints, so that the next life rebuilds everything from the log.
    pub(super) fn lose_checkpoints(&mut self) {
        self.checkpoints = [const { None }; 2];
    }

    /// Drops everything but the log.
    pub(super) fn lose_views(&mut self) {
        self.lose_checkpoints();
        self.index.clear();
        self.changes.iter_mut().for_each(Vec::clear);
    }

    pub(super) fn replace_checkpoint(&mut self, slot: u32, bytes: Vec<u8>) {
        if let Some(checkpoint) = self.checkpoints.get_mut(index(u64::from(slot))) {
            *checkpoint = Some(bytes);
        }
    }

    /// Cuts a file of the views short.
    pub(super) fn cut(&mut self, file: FileId, len: usize) {
        if let Some(bytes) = self.bytes_mut(file) {
            bytes.truncate(len);
        }
    }

    pub(super) fn len(&self, file: FileId) -> usize {
        self.bytes_at(file, 0).len()
    }

    /// Changes every byte of a stretch.
    pub(super) fn scramble(&mut self, file: FileId, range: Range<u64>) {
        let range = index(range.start)..index(range.end);
        let Some(bytes) = self.bytes_mut(file).and_then(|bytes| bytes.get_mut(range)) else {
            return;
        };
        let mut state = bytes.len();
        for byte in bytes {
            // An odd number is not 0, so no byte stays as it is.
            state = state.wrapping_mul(0x5851_F42D).wrapping_add(0x1405);
            *byte ^= (state >> 16).to_be_bytes()[7] | 1;
        }
    }

    /// Nothing was ever written from this place on.
    pub(super) fn wipe_from(&mut self, place: Place) {
        for (&ordinal, segment) in self.segments.range_mut(place.ordinal..) {
            let from = if ordinal == place.ordinal { index(place.byte) } else { 0 };
            segment.bytes.get_mut(from..).unwrap_or_default().fill(0);
        }
    }

    /// The newest group of which a sound checkpoint speaks.
    pub(super) fn checkpointed(&self) -> Option<Sequence> {
        let geometry = self.geometry();
        let sound = self.checkpoints.iter().flatten();
        let sound = sound.filter_map(|bytes| Checkpoint::decode(bytes, &geometry));
        sound.map(|checkpoint| checkpoint.through.sequence).max()
    }

    /// Flips one bit of a file. False when the file does not reach that far.
    pub(super) fn flip_bit(&mut self, file: FileId, byte: u64, bit: usize) -> bool {
        let byte = self.bytes_mut(file).and_then(|bytes| bytes.get_mut(index(byte)));
        byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
    }

    /// The groups of the log in their order, from its first segment on, found without the code of
    /// recovery: every header in its place, sound and chained to its predecessor. Where two are, in this
    /// segment and in the next one, the later life knew better.
    pub(super) fn written(&self) -> Vec<Written> {
        let mut found: Vec<Written> = Vec::new();
        // What lies in front of a gap was let go, but is not used again yet.
        let is_first = |ordinal: &&u64| ordinal.checked_sub(1).is_none_or(|n| !self.has_segment(n));
        let Some(&first) = self.segments.keys().rev().find(is_first) else { return found };
        let mut place = Place { ordinal: first, byte: 0 };
        loop {
            let next_segment = Place { ordinal: place.ordinal + 1, byte: 0 };
            let places = [place, next_segment].into_iter();
            let mut could_follow =
                places.filter_map(|place| self.group_behind(found.last(), place));
            // The first group follows nothing that is known: one of the next segment is none.
            let next = match found.last() {
                Some(_) => could_follow.max_by_key(|group| group.header.epoch),
                None => could_follow.next(),
            };
            let Some(next) = next else {
                return found;
            };
            place = Place { byte: next.place.byte + wide(next.padded), ..next.place };
            found.push(next);
        }
    }

    fn group_behind(&self, last: Option<&Written>, place: Place) -> Option<Written> {
        let geometry = self.geometry();
        let bytes = self.bytes_at(FileId::Segment(place.ordinal), place.byte);
        let group = Group::parse(bytes)?;
        let (header, header_crc) = (group.header, group.header_crc);
        let here = Some(header.position) == geometry.position(place)
            && header.store == geometry.store()
            && header.shard == geometry.shard();
        let chained = last.is_none_or(|last| {
            header.sequence == last.header.sequence.next()
                && header.previous == last.header_crc
                && header.epoch >= last.header.epoch
        });
        let sound = group.records().all(|record| record.is_sound());
        let padded = header.padded_len(geometry.block_len());
        (here && chained && sound).then_some(Written { place, header, header_crc, padded })
    }

    /// The newest frontier that a group on the device names.
    pub(super) fn noted(written: &[Written]) -> Sequence {
        written.iter().map(|group| group.header.committed).max().unwrap_or_default()
    }
}
