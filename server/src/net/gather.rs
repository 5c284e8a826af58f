//! One gathered write to a socket: pieces of several owners, handed to the kernel where they lie.
//!
//! `tokio-uring` can write many buffers at once, but wants each as an allocation of its own; a pull's
//! answer has one piece per message. So this is an operation of our own on its ring.

use std::{io, ops::Range, os::fd::AsRawFd, rc::Rc};

use bytes::Bytes;
use io_uring::{cqueue, opcode, types::Fd};
use ringmq_engine::RecordSlice;
use tokio_uring::{OneshotOutputTransform, UnsubmittedOneshot, net::TcpStream};

/// Most pieces of one write operation; the kernel takes 1,024.
const PIECES_MAX: usize = 512;

/// A part of what is written.
#[derive(Debug)]
pub(crate) enum Piece {
    /// These bytes of the gathering's own text.
    Text(Range<usize>),
    /// Bytes shared with others.
    Shared(Bytes),
    /// Records in the log's memory.
    Log(RecordSlice),
}

/// What a gathered write sends, in order.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    pub(crate) text: Vec<u8>,
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of all pieces.
    pub(crate) len: usize,
    iovecs: Vec<Iovec>,
}

/// A piece's address and length, as the kernel wants them.
#[derive(Debug)]
#[repr(transparent)]
struct Iovec(libc::iovec);

impl Gathering {
    fn bytes<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        match piece {
            Piece::Text(range) => self.text.get(range.clone()).unwrap_or_default(),
            Piece::Shared(bytes) => bytes,
            Piece::Log(slice) => slice,
        }
    }

    /// The bytes behind the first `taken`, as a copy.
    pub(crate) fn rest(&self, taken: usize) -> Vec<u8> {
        let mut rest = Vec::with_capacity(self.len.saturating_sub(taken));
        let mut skip = taken;
        for piece in &self.pieces {
            let bytes = self.bytes(piece);
            rest.extend_from_slice(bytes.get(skip..).unwrap_or_default());
            skip = skip.saturating_sub(bytes.len());
        }
        rest
    }

    /// Empties it and keeps its memory, except for a text of more than `text_max` bytes.
    pub(crate) fn recycle(&mut self, text_max: usize) {
        self.pieces.clear();
        self.len = 0;
        self.iovecs.clear();
        self.text.clear();
        if self.text.capacity() > text_max {
            self.text = Vec::new();
        }
    }

    /// Writes the pieces until the socket takes less than it is given. Gives back the gathering and
    /// how many bytes were taken.
    pub(crate) async fn write(mut self, stream: &Rc<TcpStream>) -> (io::Result<usize>, Self) {
        let (mut first, mut taken) = (0, 0);
        while first < self.pieces.len() {
            let wanted = self.point_at(first);
            let entry = opcode::Writev::new(
                Fd(stream.as_raw_fd()),
                self.iovecs.as_ptr().cast(),
                u32::try_from(self.iovecs.len()).unwrap_or(0),
            );
            first += self.iovecs.len();
            let data = Writing { gathering: self, _stream: Rc::clone(stream) };
            // What the entry's addresses point to is owned by `data`, which the runtime keeps until
            // the completion, also when this future is dropped; buffers on the heap do not move
            // with it. The stream stays open as long.
            let (result, back) =
                UnsubmittedOneshot::new(data, Written, entry.build()).submit().await;
            self = back.gathering;
            match result {
                Ok(len) => taken += len,
                Err(error) => return (Err(error), self),
            }
            if result.is_ok_and(|len| len < wanted) {
                break;
            }
        }
        (Ok(taken), self)
    }

    /// Points the kernel's list at the pieces from `first` on. Gives their bytes.
    fn point_at(&mut self, first: usize) -> usize {
        let mut iovecs = std::mem::take(&mut self.iovecs);
        iovecs.clear();
        let mut wanted = 0;
        for piece in self.pieces.iter().skip(first).take(PIECES_MAX) {
            let bytes = self.bytes(piece);
            wanted += bytes.len();
            // The kernel only reads from it.
            let iov_base = bytes.as_ptr().cast_mut().cast();
            iovecs.push(Iovec(libc::iovec { iov_base, iov_len: bytes.len() }));
        }
        self.iovecs = iovecs;
        wanted
    }
}

/// What the kernel uses until the write is complete.
struct Writing {
    gathering: Gathering,
    _stream: Rc<TcpStream>,
}

struct Written;

impl OneshotOutputTransform for Written {
    type Output = (io::Result<usize>, Writing);
    type StoredData = Writing;

    fn transform_oneshot_output(self, data: Writing, entry: cqueue::Entry) -> Self::Output {
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        (result, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathering(pieces: Vec<Piece>) -> Gathering {
        Gathering { text: b"abcdef".to_vec(), pieces, ..Gathering::default() }
    }

    #[test]
    fn the_rest_after_a_short_write_begins_at_the_right_byte() {
        let pieces = vec![
            Piece::Text(0..3),
            Piece::Text(3..3),
            Piece::Shared(Bytes::from_static(b"XY")),
            Piece::Text(3..6),
        ];
        let gathering = gathering(pieces);
        for taken in 0..=8 {
            assert_eq!(gathering.rest(taken), &b"abcXYdef"[taken..], "after {taken}");
        }
    }

    #[test]
    fn one_operation_never_gets_more_pieces_than_the_kernel_takes() {
        let mut gathering = gathering((0..1300).map(|_| Piece::Text(1..3)).collect());
        let windows =
            [0, 512, 1024].map(|first| (gathering.point_at(first), gathering.iovecs.len()));
        assert_eq!(windows, [(1024, 512), (1024, 512), (552, 276)]);
    }
}
