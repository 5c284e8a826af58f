//! How often each kind of fault fired, and how often each state that it leads to was reached.

use std::fmt;

macro_rules! events {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$item])* #[doc = $text] $variant,)* }

        impl $name {
            /// Every kind, in the order in which they are printed.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// What people read.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

events! {
    /// What the simulation does to a store, and what it has seen happen.
    Event {
        Killed = "process killed with operations under way",
        PowerCut = "power cut",
        EndedInOpening = "end while the store was being opened",
        EndedSoon = "end within a few steps of recovery",
        Closed = "clean end",
        Torn = "write torn at its sectors",
        Lost = "write lost as a whole",
        Landed = "write that landed although its life had ended",
        Unconverted = "write lost with its reserved blocks",
        Reordered = "completion out of order",
        Delayed = "operation held back for long",
        ShortWrite = "short write, continued",
        ShortRead = "short read, continued",
        LogWriteError = "EIO writing the log",
        ZeroError = "EIO preparing a segment",
        IndexWriteError = "EIO or ENOSPC writing a view's file",
        CheckpointError = "EIO or ENOSPC replacing a checkpoint",
        ReadError = "EIO reading the log or a view's file",
        OpenReadError = "EIO while recovery was reading",
        DiskFull = "ENOSPC creating a segment",
        BitFlip = "bit flipped below a noted frontier",
        Scrambled = "run of bytes scrambled below a noted frontier",
        TrimDamaged = "newest trim damaged, and nothing left but the log",
        DeletionDamaged = "newest deletion damaged, and nothing left but the log",
        LifeCutOff = "life cut off as a whole, its epoch lost, before one in the next segment",
        LogEndLost = "end of the log lost although a checkpoint knows it",
        RecycleError = "EIO recycling a segment",
        CheckpointsLost = "both checkpoint files lost",
        CheckpointLost = "one checkpoint file lost",
        CheckpointDamaged = "checkpoint file damaged",
        IndexLost = "index file lost or cut",
        IndexDamaged = "index file damaged",
        ChangesLost = "changes file lost or cut",
        ChangesDamaged = "changes file damaged",
        EpochLost = "epoch file lost",
        ClockBack = "clock set back",
        ClockAhead = "clock ahead by seconds",
        Appended = "(reached) append accepted",
        HandedOver = "(reached) request handed over to another shard",
        Backlogged = "(reached) append refused for want of room",
        Poisoned = "(reached) shard poisoned",
        Rolled = "(reached) segment rolled",
        Recycled = "(reached) segment recycled",
        Removed = "(reached) segment removed",
        Discarded = "(reached) front of the index given back",
        Trimmed = "(reached) queue that lost records to retention",
        Deleted = "(reached) queue deleted",
        ColdRead = "(reached) read from the device",
        FoundByKey = "(reached) record found by its key",
        Woken = "(reached) waiter woken",
        Spots = "(reached) records read from the device one by one",
        FromCheckpoint = "(reached) opened from a checkpoint",
        FromLog = "(reached) opened from the log alone",
        TornTailCut = "(reached) torn tail cut",
        DamageFound = "(reached) damage told from a torn tail",
        Restored = "(reached) groups restored from shared memory",
        Ahead = "(reached) group acknowledged before it was on the device",
        Given = "(reached) acknowledged group lost by a power cut of a buffered store",
        Switched = "(reached) store switched between durable and buffered",
    }
}

const KINDS: usize = Event::ALL.len();

/// A count for every [`Event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally([u64; KINDS]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; KINDS])
    }
}

impl Tally {
    /// Counts an event once.
    pub fn count(&mut self, event: Event) {
        self.add(event, 1);
    }

    /// Counts an event `n` times.
    pub fn add(&mut self, event: Event, n: u64) {
        if let Some(slot) = self.0.get_mut(event as usize) {
            *slot += n;
        }
    }

    /// How often it happened.
    pub fn of(&self, event: Event) -> u64 {
        self.0.get(event as usize).copied().unwrap_or(0)
    }

    /// Adds another tally to this one.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, n)| *sum += n);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &event in Event::ALL {
            writeln!(f, "{:>12}  {}", self.of(event), event.name())?;
        }
        Ok(())
    }
}
