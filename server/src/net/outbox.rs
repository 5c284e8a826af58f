//! Answers that wait to be written.
//!
//! Small answers are collected in one buffer. An answer with messages is its header in that buffer
//! and then slices of the log's own memory, so that everything that is ready goes out in one gathered
//! write without another copy.
//!
//! Slices pin the log's memory. Whoever writes must not let a peer that does not read hold them: after
//! the first short write, and for a connection that was slow lately, they are copied.

use std::{io, mem, rc::Rc};

use bytes::Bytes;
use ringmq_engine::RecordSlice;
use tokio_uring::{buf::BoundedBuf, net::TcpStream};

use super::gather::{Gathering, Piece};

/// Shared bytes up to this length are copied: a piece of their own costs more.
const COPY_LEN: usize = 512;
/// A buffer is kept for the next answers up to this capacity in bytes.
const KEEP_LEN: usize = 64 << 10;

/// Answers in the order in which they go out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whole answers, and the parts of answers before their slices.
    text: Vec<u8>,
    /// Where the text begins that no piece covers yet.
    uncovered: usize,
    /// Empty as long as there is only text.
    pieces: Vec<Piece>,
    /// Bytes in pieces that are not text.
    shared_len: usize,
    /// Memory of earlier batches.
    spare_text: Vec<u8>,
    spare: Gathering,
}

/// What one write gets.
#[derive(Debug)]
pub(crate) enum Batch {
    /// Only small answers.
    Plain(Vec<u8>),
    /// Answers with slices among them.
    Gathered(Gathering),
}

impl Outbox {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.text.len() + self.shared_len
    }

    /// Where a whole answer, or the part of it before its slices, is appended.
    pub(crate) fn open(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Appends the slices of an answer behind its header; copied if the peer is slow, or if they
    /// are too short to be worth a piece of their own.
    pub(crate) fn push_slices(&mut self, slices: impl Iterator<Item = RecordSlice>, slow: bool) {
        for slice in slices {
            if slow || slice.len() <= COPY_LEN {
                self.text.extend_from_slice(&slice);
            } else {
                self.push(slice.len(), Piece::Log(slice));
            }
        }
    }

    /// Appends bytes that are shared with others.
    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_LEN {
            self.text.extend_from_slice(&bytes);
        } else {
            self.push(bytes.len(), Piece::Shared(bytes));
        }
    }

    fn push(&mut self, len: usize, piece: Piece) {
        self.cover_text();
        self.shared_len += len;
        self.pieces.push(piece);
    }

    fn cover_text(&mut self) {
        let end = self.text.len();
        if self.uncovered < end {
            self.pieces.push(Piece::Text(self.uncovered..end));
            self.uncovered = end;
        }
    }

    /// Keeps the memory of a batch that has been written for further answers, unless it has grown
    /// large.
    pub(crate) fn recycle(&mut self, batch: Batch) {
        match batch {
            Batch::Plain(mut text) if text.capacity() <= KEEP_LEN => {
                text.clear();
                self.spare_text = text;
            }
            Batch::Plain(_) => {}
            Batch::Gathered(mut gathering) => {
                gathering.recycle(KEEP_LEN);
                self.spare = gathering;
            }
        }
    }

    /// Takes what waits. `None`: nothing waits.
    pub(crate) fn take(&mut self) -> Option<Batch> {
        if self.len() == 0 {
            return None;
        }
        if self.pieces.is_empty() {
            let spare = mem::take(&mut self.spare_text);
            return Some(Batch::Plain(mem::replace(&mut self.text, spare)));
        }
        self.cover_text();
        let mut gathering = mem::take(&mut self.spare);
        gathering.len = self.len();
        mem::swap(&mut gathering.text, &mut self.text);
        mem::swap(&mut gathering.pieces, &mut self.pieces);
        (self.uncovered, self.shared_len) = (0, 0);
        Some(Batch::Gathered(gathering))
    }
}

/// How a batch went out.
#[derive(Debug)]
pub(crate) struct Written {
    /// What was written; its memory is free again.
    pub(crate) batch: Batch,
    /// Whether the socket took everything at once.
    pub(crate) at_once: bool,
}

impl Batch {
    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Gathered(gathering) => gathering.len,
        }
    }

    /// Writes all of it. `progress` is called after each part that the socket took.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub(crate) async fn write(
        self,
        stream: &Rc<TcpStream>,
        progress: impl Fn(),
    ) -> io::Result<Written> {
        match self {
            Self::Plain(bytes) => write_plain(stream, bytes, progress).await,
            Self::Gathered(gathering) => {
                let total = gathering.len;
                let (result, gathering) = gathering.write(stream).await;
                let taken = taken(result)?;
                progress();
                if taken == total {
                    return Ok(Written { batch: Self::Gathered(gathering), at_once: true });
                }
                // The peer is behind. The rest waits as a copy, so that the log's memory is free.
                let rest = gathering.rest(taken);
                drop(gathering);
                let written = write_plain(stream, rest, progress).await?;
                Ok(Written { at_once: false, ..written })
            }
        }
    }
}

async fn write_plain(
    stream: &TcpStream,
    mut bytes: Vec<u8>,
    progress: impl Fn(),
) -> io::Result<Written> {
    let (mut done, mut at_once) = (0, true);
    while done < bytes.len() {
        let (result, slice) = stream.write(bytes.slice(done..)).submit().await;
        bytes = slice.into_inner();
        done += taken(result)?;
        progress();
        at_once &= done == bytes.len();
    }
    Ok(Written { batch: Batch::Plain(bytes), at_once })
}

fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(batch: Option<Batch>) -> Gathering {
        match batch {
            Some(Batch::Gathered(gathering)) => gathering,
            other => panic!("not gathered: {other:?}"),
        }
    }

    #[test]
    fn small_answers_go_out_together_and_their_buffer_is_reused() {
        let mut outbox = Outbox::default();
        outbox.open().extend_from_slice(b"one");
        outbox.push_bytes(Bytes::from_static(b"two"));
        assert_eq!(outbox.len(), 6);
        let batch = outbox.take().expect("six bytes wait");
        let Batch::Plain(bytes) = &batch else { panic!("not plain: {batch:?}") };
        assert_eq!(bytes, b"onetwo");
        let start = bytes.as_ptr();
        assert!(outbox.take().is_none());
        assert_eq!(outbox.len(), 0);
        outbox.recycle(batch);
        outbox.open().push(b'x');
        drop(outbox.take());
        outbox.open().push(b'y');
        assert_eq!(outbox.text.as_ptr(), start);
    }

    #[test]
    fn answers_keep_their_order_around_shared_bytes() {
        let mut outbox = Outbox::default();
        for round in 0..2 {
            outbox.open().extend_from_slice(b"a");
            outbox.push_bytes(Bytes::from(vec![b'b'; 5000]));
            outbox.open().extend_from_slice(b"c");
            assert_eq!(outbox.len(), 5002, "round {round}");
            let gathering = gathered(outbox.take());
            assert_eq!(gathering.len, 5002);
            assert_eq!(gathering.rest(0), [&b"a"[..], &[b'b'; 5000], b"c"].concat());
            assert_eq!(outbox.len(), 0);
            outbox.recycle(Batch::Gathered(gathering));
        }
    }
}
