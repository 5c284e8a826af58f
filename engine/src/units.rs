//! Numbers that carry their unit.
//!
//! A log position, a queue offset, a time and a group sequence are all 64-bit integers that would
//! mix silently; each has a type of its own, with only the operations that make sense.

use std::fmt;

/// A position in the log of a store.
///
/// Unit: bytes in one dense space shared by all shards:
/// `(segment ordinal * shards + shard) * segment length + byte in the segment`.
/// Range: `0..=i64::MAX`, since clients carry it in a signed 64-bit field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogOffset(i64);

/// A place in a queue: the number of records before it.
///
/// Unit: records. Offsets are dense: 0, 1, 2, without gap or reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueOffset(i64);

/// A point in time. Unit: milliseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochMillis(i64);

/// The number of a group in its shard's log. It rises by one per group for ever; 0 is "none yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl LogOffset {
    /// The first position of the first shard.
    pub(crate) const START: Self = Self(0);

    /// The position with this number, or `None` for a negative one.
    pub fn new(bytes: i64) -> Option<Self> {
        (bytes >= 0).then_some(Self(bytes))
    }

    /// The number, in bytes.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The position `len` bytes further on. Positions are bounded far below `i64::MAX` by
    /// [`Geometry`](crate::Geometry), which refuses ordinals that would leave the range.
    #[must_use]
    pub fn plus(self, len: usize) -> Self {
        Self(self.0.saturating_add(i64::try_from(len).unwrap_or(i64::MAX)))
    }
}

impl QueueOffset {
    /// The offset with this number, or `None` for a negative one.
    pub fn new(records: i64) -> Option<Self> {
        (records >= 0).then_some(Self(records))
    }

    /// The number, in records.
    pub fn get(self) -> i64 {
        self.0
    }

    /// The offset `count` records further on.
    #[must_use]
    pub fn plus(self, count: usize) -> Self {
        Self(self.0.saturating_add(i64::try_from(count).unwrap_or(i64::MAX)))
    }

    /// How many records lie between `earlier` and this offset; 0 when it is not earlier.
    pub fn since(self, earlier: Self) -> usize {
        usize::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl EpochMillis {
    /// The time with this number of milliseconds since 1970.
    pub const fn new(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since 1970.
    pub fn get(self) -> i64 {
        self.0
    }

    /// Milliseconds from `earlier` to this time; 0 when it is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }
}

impl Sequence {
    /// The sequence with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The sequence of the following group.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

macro_rules! display {
    ($($unit:ident),*) => {$(
        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display!(LogOffset, QueueOffset, EpochMillis, Sequence);

/// A length or count from a file as an index. Every supported target has 64-bit addresses.
pub(crate) fn index(value: u64) -> usize {
    const { assert!(usize::BITS >= 64, "the engine needs 64-bit addresses") };
    usize::try_from(value).expect("usize has 64 bits")
}

/// An index as a 64-bit number.
pub(crate) fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("usize has at most 64 bits")
}

/// A length that a bound has already kept below 4 GiB.
pub(crate) fn narrow(value: usize) -> u32 {
    u32::try_from(value).expect("lengths are bounded below 4 GiB before they get here")
}
