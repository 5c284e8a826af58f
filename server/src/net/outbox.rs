//! Answers that wait to be written.
//!
//! Small answers are collected in one buffer. An answer with messages is its header in that buffer
//! and then slices of the log's own memory, so that everything that is ready goes out in one gathered
//! write without another copy.
//!
//! Slices pin the log's memory. Whoever writes must not let a peer that does not read hold them: after
//! the first short write, and for a connection that was slow lately, they are copied.

use std::{io, mem};

use bytes::Bytes;
use ringmq_engine::RecordSlice;
use tokio_uring::{buf::BoundedBuf, net::TcpStream};

/// Most pieces of one gathered write; the kernel takes 1,024.
const PIECES_MAX: usize = 512;
/// Shared bytes up to this length are copied: a piece of their own costs more.
const COPY_LEN: usize = 512;
/// A buffer is kept for the next answers up to this capacity in bytes.
const KEEP_LEN: usize = 64 << 10;

/// Answers in the order in which they go out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Closed pieces, before `open`.
    pieces: Vec<Bytes>,
    /// Bytes in `pieces`.
    pieces_len: usize,
    /// Where the next answer is written.
    open: Vec<u8>,
    /// An empty buffer to replace `open`.
    spare: Vec<u8>,
}

/// What one write operation gets.
#[derive(Debug)]
pub(crate) enum Batch {
    /// Only small answers.
    Plain(Vec<u8>),
    /// Answers with slices among them.
    Gathered(Vec<Bytes>),
}

impl Outbox {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.pieces_len + self.open.len()
    }

    /// Where a whole answer, or the part of it before its slices, is appended.
    pub(crate) fn open(&mut self) -> &mut Vec<u8> {
        &mut self.open
    }

    /// Appends the slices of an answer behind its header; copied if the peer is slow, or if they
    /// are too short to be worth a piece of their own.
    pub(crate) fn push_slices(&mut self, slices: impl Iterator<Item = RecordSlice>, slow: bool) {
        for slice in slices {
            if slow || slice.len() <= COPY_LEN {
                self.open.extend_from_slice(&slice);
                continue;
            }
            self.close_piece();
            self.pieces_len += slice.len();
            self.pieces.push(Bytes::from_owner(slice));
        }
    }

    /// Appends bytes that are shared with others.
    pub(crate) fn push_bytes(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_LEN {
            self.open.extend_from_slice(&bytes);
            return;
        }
        self.close_piece();
        self.pieces_len += bytes.len();
        self.pieces.push(bytes);
    }

    fn close_piece(&mut self) {
        if !self.open.is_empty() {
            self.pieces_len += self.open.len();
            self.pieces.push(Bytes::from(mem::take(&mut self.open)));
        }
    }

    /// Keeps a buffer that has been written for further answers, unless it has grown large.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= KEEP_LEN {
            buffer.clear();
            self.spare = buffer;
        }
    }

    /// Takes what waits. `None`: nothing waits.
    pub(crate) fn take(&mut self) -> Option<Batch> {
        if self.pieces.is_empty() {
            if self.open.is_empty() {
                return None;
            }
            let spare = mem::take(&mut self.spare);
            return Some(Batch::Plain(mem::replace(&mut self.open, spare)));
        }
        self.close_piece();
        let rest = self.pieces.split_off(self.pieces.len().min(PIECES_MAX));
        let pieces = mem::replace(&mut self.pieces, rest);
        self.pieces_len = self.pieces.iter().map(Bytes::len).sum();
        Some(Batch::Gathered(pieces))
    }
}

/// How a batch went out.
#[derive(Debug)]
pub(crate) struct Written {
    /// The buffer that is free again.
    pub(crate) buffer: Vec<u8>,
    /// Whether the socket took everything at once.
    pub(crate) at_once: bool,
}

impl Batch {
    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Gathered(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }

    /// Writes all of it. `progress` is called after each part that the socket took.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub(crate) async fn write(
        self,
        stream: &TcpStream,
        progress: impl Fn(),
    ) -> io::Result<Written> {
        match self {
            Self::Plain(bytes) => write_plain(stream, bytes, progress).await,
            Self::Gathered(pieces) => {
                let total: usize = pieces.iter().map(Bytes::len).sum();
                let (result, pieces) = stream.writev(pieces).await;
                let taken = taken(result)?;
                progress();
                if taken == total {
                    return Ok(Written { buffer: Vec::new(), at_once: true });
                }
                // The peer is behind. The rest waits as a copy, so that the log's memory is free.
                let rest = copy_rest(&pieces, taken, total);
                drop(pieces);
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
    Ok(Written { buffer: bytes, at_once })
}

fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        len => Ok(len),
    }
}

/// The bytes of `pieces` behind the first `taken` of `total`.
fn copy_rest(pieces: &[Bytes], taken: usize, total: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(total.saturating_sub(taken));
    let mut skip = taken;
    for piece in pieces {
        rest.extend_from_slice(piece.get(skip..).unwrap_or_default());
        skip = skip.saturating_sub(piece.len());
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(batch: Option<Batch>) -> Vec<u8> {
        match batch {
            Some(Batch::Gathered(pieces)) => pieces.concat(),
            other => panic!("not gathered: {other:?}"),
        }
    }

    #[test]
    fn small_answers_go_out_together_and_their_buffer_is_reused() {
        let mut outbox = Outbox::default();
        outbox.open().extend_from_slice(b"one");
        outbox.push_bytes(Bytes::from_static(b"two"));
        assert_eq!(outbox.len(), 6);
        match outbox.take() {
            Some(Batch::Plain(bytes)) => assert_eq!(bytes, b"onetwo"),
            other => panic!("not plain: {other:?}"),
        }
        assert!(outbox.take().is_none());
        assert_eq!(outbox.len(), 0);
    }

    #[test]
    fn answers_keep_their_order_around_shared_bytes() {
        let mut outbox = Outbox::default();
        outbox.open().extend_from_slice(b"a");
        outbox.push_bytes(Bytes::from(vec![b'b'; 5000]));
        outbox.open().extend_from_slice(b"c");
        assert_eq!(outbox.len(), 5002);
        let batch = outbox.take();
        assert_eq!(batch.as_ref().map(Batch::len), Some(5002));
        assert_eq!(gathered(batch), [&b"a"[..], &[b'b'; 5000], b"c"].concat());
    }

    #[test]
    fn one_write_never_gets_more_pieces_than_the_kernel_takes() {
        let mut outbox = Outbox::default();
        for _ in 0..PIECES_MAX {
            outbox.open().push(b'h');
            outbox.push_bytes(Bytes::from(vec![b'm'; 5000]));
        }
        let whole = outbox.len();
        let first = gathered(outbox.take());
        assert_eq!(outbox.len(), whole - first.len());
        outbox.open().push(b'z');
        let second = gathered(outbox.take());
        assert_eq!(first.len() + second.len(), whole);
        assert_eq!(gathered(outbox.take()), b"z");
        assert_eq!(first.first(), Some(&b'h'));
    }

    #[test]
    fn the_rest_after_a_short_write_begins_at_the_right_byte() {
        let pieces = [&b"abc"[..], b"", b"de", b"f"].map(Bytes::from_static);
        for taken in 0..6 {
            assert_eq!(copy_rest(&pieces, taken, 6), &b"abcdef"[taken..], "after {taken}");
        }
    }
}
