//! The task of one connection: bytes out, bytes in, and the time of calls.

use std::{io, sync::Arc};

use bytes::{Buf, Bytes, BytesMut};
use ringmq_protocol::{
    command::Command,
    frame::{self, Encoding, FRAME_LEN_MAX, Frame, PREFIX_LEN},
    template::{AnswerTemplate, MatchedAnswer},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{
    Answer,
    link::{Caller, Outcome, State, Taken},
    queue::Queue,
    serve::Desk,
    stored,
    stream::{Reader, Writer},
    unexpected,
};

/// Room for reading, in bytes; longer frames get what they need.
const READ_LEN: usize = 64 * 1024;

/// Frames up to this length are copied out of the buffer, so that the buffer is used again and who
/// keeps one of them does not keep all.
const COPIED_LEN_MAX: usize = 4096;

/// Answers to sends that had to be parsed for each of which one is learned: learning costs as much
/// as some ten comparisons save.
const ANSWERS_PER_LESSON: usize = 16;

/// Runs a connection until one side closes it.
pub(super) async fn run(desk: Desk, reader: Reader, writer: Writer, state: Arc<State>) {
    let end = tokio::select! {
        end = read(reader, &desk, &state) => end,
        end = write(writer, &state) => end,
        end = watch_time(&state) => end,
        () = state.close.notified() => Ok(()),
    };
    if let Err(error) = end {
        tracing::debug!(addr = desk.addr(), %error, "connection ended");
    }
    state.end();
}

/// Writes what is queued until nobody has the connection any more.
async fn write(mut writer: Writer, state: &State) -> io::Result<()> {
    let mut queue = Queue::default();
    loop {
        // Others who are ready to run add their requests first.
        yield_now().await;
        match state.take(&mut queue) {
            Taken::Frames => queue.write_to(&mut writer).await?,
            Taken::Nothing => state.write.notified().await,
            Taken::Finished => return writer.shutdown().await,
        }
    }
}

/// Tells callers whose time is over.
async fn watch_time(state: &State) -> io::Result<()> {
    loop {
        let next = state.sweep_at();
        let sleep = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {
                if state.sweep(Instant::now()) {
                    return Err(io::Error::other("the peer is silent"));
                }
            }
            () = state.hurry.notified() => {}
        }
    }
}

/// What has to be done with a frame whose header was read.
enum Step {
    /// Nothing more.
    Done,
    /// Nothing more: a sender has it.
    Stored,
    /// Give it to this caller.
    Answer(oneshot::Sender<Outcome<Answer>>, i32),
    /// It is a request.
    Serve,
}

/// Reads frames until the peer closes.
async fn read(mut reader: Reader, desk: &Desk, state: &State) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(READ_LEN);
    let mut answers = Answers::default();
    let mut has_more = false;
    loop {
        let mut count = 0;
        while let Some(frame) = frame::decode(&buffer, FRAME_LEN_MAX).map_err(io::Error::other)? {
            let step = if let Some(answer) = answers.read(&frame) {
                take_answer(answer, desk, state)
            } else {
                let command = Command::parse(frame.encoding, frame.header);
                let step = take_header(&command.map_err(io::Error::other)?, desk, state);
                if matches!(step, Step::Stored) {
                    answers.learn(&frame);
                }
                step
            };
            let place = (frame.encoding, frame.header.len(), frame.total_len);
            count += usize::from(!matches!(step, Step::Serve));
            take_frame(step, place, &mut buffer, desk);
        }
        if 0 < count {
            state.answered(count);
        }
        if has_more {
            // Those who were answered go on before more answers are read.
            yield_now().await;
        }
        let missing = frame::peek_len(&buffer, FRAME_LEN_MAX)
            .map_err(io::Error::other)?
            .map_or(0, |len| len.saturating_sub(buffer.len()));
        buffer.reserve(missing.max(READ_LEN));
        let room = buffer.capacity() - buffer.len();
        let len = reader.read_buf(&mut buffer).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.received();
        has_more = len == room;
    }
}

/// Finds out whose a frame is, and serves senders at once.
fn take_header(command: &Command<'_>, desk: &Desk, state: &State) -> Step {
    if !command.is_response() {
        return Step::Serve;
    }
    match state.remove(command.opaque) {
        Some(Caller::Any(sender)) => Step::Answer(sender, command.code),
        Some(Caller::Sent(sender)) => {
            // The caller may have gone in this moment.
            drop(sender.send(Outcome::Answered(stored::read(desk.addr(), command))));
            Step::Stored
        }
        None => to_nobody(command.opaque),
    }
}

/// Gives an answer to a send to whoever waits for it.
fn take_answer(answer: MatchedAnswer<'_>, desk: &Desk, state: &State) -> Step {
    let (opaque, code) = (answer.opaque, answer.code);
    match state.remove(opaque) {
        Some(Caller::Any(sender)) => Step::Answer(sender, code),
        Some(Caller::Sent(sender)) => {
            let addr = desk.addr();
            let stored = stored::matched(answer).ok_or_else(|| unexpected(addr, "no success"));
            // The caller may have gone in this moment.
            drop(sender.send(Outcome::Answered(stored)));
            Step::Stored
        }
        None => to_nobody(opaque),
    }
}

fn to_nobody(opaque: i32) -> Step {
    tracing::trace!(opaque, "answer to nobody");
    Step::Done
}

/// What answers to sends looked like so far.
#[derive(Default)]
struct Answers {
    known: Option<AnswerTemplate>,
    /// Answers that did not look like it.
    unknown: usize,
}

impl Answers {
    /// Reads an answer that looks like an earlier one.
    fn read<'a>(&'a self, frame: &Frame<'a>) -> Option<MatchedAnswer<'a>> {
        self.known.as_ref().filter(|_| frame.encoding == Encoding::Json)?.read(frame.header)
    }

    /// Learns from an answer that had to be parsed, but not from each of many different ones.
    fn learn(&mut self, frame: &Frame<'_>) {
        if self.unknown.is_multiple_of(ANSWERS_PER_LESSON) && frame.encoding == Encoding::Json {
            let is_stored = |known: &AnswerTemplate| {
                known.read(frame.header).and_then(stored::matched).is_some()
            };
            let learned = AnswerTemplate::learn(frame.header).filter(is_stored);
            self.known = learned.or(self.known.take());
        }
        self.unknown = self.unknown.wrapping_add(1);
    }
}

/// Takes a frame out of the buffer.
fn take_frame(
    step: Step,
    (encoding, header_len, total_len): (Encoding, usize, usize),
    buffer: &mut BytesMut,
    desk: &Desk,
) {
    if matches!(step, Step::Done | Step::Stored) {
        return buffer.advance(total_len);
    }
    let mut header = if total_len <= COPIED_LEN_MAX {
        let copy = Bytes::copy_from_slice(buffer.get(..total_len).unwrap_or_default());
        buffer.advance(total_len);
        copy
    } else {
        buffer.split_to(total_len).freeze()
    };
    header.advance(PREFIX_LEN);
    let body = header.split_off(header_len);
    match step {
        Step::Done | Step::Stored => {}
        // The caller may have gone in this moment.
        Step::Answer(sender, code) => {
            drop(sender.send(Outcome::Answered(Answer { code, encoding, header, body })));
        }
        Step::Serve => desk.take(encoding, header, body),
    }
}
