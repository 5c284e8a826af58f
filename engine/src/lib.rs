//! An embeddable storage engine: sharded logs with group commit on `io_uring`, queues and facts.
//!
//! A store is a folder with a fixed number of shards. Each shard has a log, and everything else (the
//! queues, the key index, the facts, the position maps) is a view of the log that can be rebuilt from it. A thread
//! owns a shard and everything of it: nothing on the append path is shared, locked or counted.
//!
//! The crate knows nothing of what is in a record: an embedder stores anything that implements
//! [`Record`], plain bytes included. An append is answered once its record is durable and visible.
//!
//! A record may have keys, and [`ShardHandle::find`] leads from a key to its records, newest first. Of a
//! key the engine knows a hash only: the embedder says which records have it.
//!
//! # Three ways to use it
//!
//! - [`Engine::open`] gives a handle for any thread and any executor, and runs the shards on threads
//!   that it starts for them. Each of its futures can also be waited for by blocking, with `wait`.
//! - [`Engine::attach`] gives the same handle, and the shards to threads of the caller: a
//!   [`ShardLoop`] runs by itself or inside a loop that has other work too.
//! - [`Store::open`] gives bare shards. The thread that owns one appends and reads without locks,
//!   hand-over or futures, and drives the ring with [`RingShard::turn`].
//!
//! Nothing is global: stores are opened and closed as often as wanted in one process, several at a
//! time, and no thread runs that the caller did not ask for.
//!
//! # Limits
//!
//! Every memory has a bound: of a shard in [`ShardLimits`], of what waits between the handles and a
//! shard in [`InboxLimits`]. Where one is reached, appends wait for room, or say
//! [`AppendError::Backlogged`]. Records that were read hold memory of the shard until they are
//! dropped; readers that hold much are given copies instead, so an append never waits for them.
//!
//! # What an acknowledgement means
//!
//! A property of the store, [`StoreOptions::acknowledge`]. In a durable store, the default, what is
//! answered is on the device: no crash loses it. In a buffered one it lies in shared memory that
//! outlives the process, and goes to the device behind the answer: a killed process loses nothing, a
//! power cut or a crash of the system can cost the last moments, and leaves the log's prefix. That
//! [`RecoveryReport::lost_bytes_max`] says.
//!
//! # Files
//!
//! ```text
//! manifest            what the store is: id, shards, segment and block length, format version
//! lock                held by the process that has the store open
//! shard-N/*.log       segments of the log, named by their ordinal in hexadecimal
//! shard-N/index       blocks that the views have put aside
//! shard-N/changes.*   what the views have learned, two files
//! shard-N/checkpoint.*  how far that counts, the newest two
//! shard-N/buffers     where a buffered store has its groups in shared memory, while it is open
//! shard-N/epoch       the number of the shard's newest life
//! ```
//!
//! Every integer is big-endian, every checksum is CRC-32C. The layouts, byte by byte:
//!
#![doc = include_str!("../format/manifest.md")]
#![doc = include_str!("../format/group.md")]
#![doc = include_str!("../format/payload.md")]
#![doc = include_str!("../format/index_block.md")]
#![doc = include_str!("../format/checkpoint.md")]
#![doc = include_str!("../format/buffers.md")]

mod crc;
mod driver;
mod error;
mod format;
mod handle;
mod layout;
mod mem;
mod op;
mod record;
mod recovery;
mod shard;
mod store;
mod units;
mod view;

pub use driver::ring::RingShard;
#[cfg(any(test, feature = "sim"))]
pub use driver::sim;
pub use error::{AppendError, Closed, DiskUse, OpenError, ReadError};
pub use handle::{
    Answer, Append, Batch, Close, Commit, Engine, EngineOptions, Fact, InboxLimits, NewRecord,
    Queue, QueueOffsets, Read, Room, ShardHandle, ShardLoop, Turn,
};
pub use layout::{Geometry, shard_of};
pub use mem::RecordSlice;
pub use op::{Completion, FileId, Op, OpId, ReadBuffer, Unpopulated};
pub use record::{KeyHash, KeyScope, Record, Stamp};
pub use recovery::RecoveryReport;
pub use shard::{
    Acknowledge, Appended, CommitBy, FoundRecord, Hold, KeyLimits, KeyOutcome, KeySearch,
    ReadAtOutcome, ReadLimits, ReadOutcome, SearchOutcome, Shard, ShardLimits, ShardStats,
    StoreTime, StoredRecord, Trimmed, WRITE_DELAY_MS,
};
pub use store::{DiskBudget, OpenStore, Store, StoreGuard, StoreOptions};
pub use units::{EpochMillis, LogOffset, QueueOffset, Sequence};
pub use view::QueueNo;
pub use view::queue::TagFilter;
