//! What needs more than the public interface.

use std::io;

use super::*;
use crate::error::ReadError;
use crate::op::{Completion, OpId};
use crate::shard::Shard;
use crate::units::{EpochMillis, QueueOffset};

/// Has the writes that are under way fail, whatever becomes of them.
fn fail_writes(shard: &mut Shard, now: EpochMillis) {
    shard.input_drained(now);
    for n in 0..64 {
        let result = Err(io::Error::other("on purpose"));
        shard.complete(Completion { id: OpId(n), result, buffer: None }, now);
    }
    assert!(shard.poisoned().is_some());
}

#[test]
fn a_poisoned_shard_answers_appends_facts_and_whoever_waits_at_the_tail() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path(), &EngineOptions::default()).unwrap();
    let queue = engine.open_queue(b"q").wait().unwrap();
    queue.append(b"kept").wait().unwrap();
    let follower = thread::spawn({
        let queue = queue.clone();
        move || queue.read(QueueOffset::new(1).unwrap()).follow().wait().unwrap_err()
    });
    let number = queue.number();
    let failed = queue.shard().with(move |shard, now| {
        let appended = shard.append(number, &[&b"lost"[..]], now).unwrap();
        fail_writes(shard, now);
        appended.sequence
    });
    let sequence = failed.wait().unwrap();
    let poisoned = |error| matches!(error, AppendError::Poisoned(_));
    assert!(poisoned(queue.shard().committed(sequence).wait().unwrap_err()));
    assert!(poisoned(queue.append(b"refused").wait().unwrap_err()));
    assert!(poisoned(queue.shard().put_fact(b"k", Some(b"v")).wait().unwrap_err()));
    let told = follower.join().unwrap();
    assert!(matches!(told, ReadError::Poisoned(_)), "{told}");
    let batch = queue.read(QueueOffset::default()).wait().unwrap();
    assert_eq!(&*batch.records[0].bytes, b"kept");
    assert!(engine.close().wait().is_err());
}

#[test]
fn the_last_handle_may_be_dropped_on_the_shards_own_thread() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path(), &EngineOptions::default()).unwrap();
    let shard = engine.shard(0).unwrap();
    let last = engine.clone();
    // Dropped here, the handles of this thread leave the one inside the request as the last.
    let mut answer = Box::pin(shard.with(move |_, _| drop(last)));
    let mut context = Context::from_waker(std::task::Waker::noop());
    // It may be there at once.
    let first = answer.as_mut().poll(&mut context);
    drop((engine, shard));
    let answered = match first {
        Poll::Ready(answered) => answered,
        Poll::Pending => park::block_on(answer),
    };
    assert!(matches!(answered, Ok(())), "{answered:?}");
    drop(Engine::open(dir.path(), &EngineOptions::default()).unwrap());
}
