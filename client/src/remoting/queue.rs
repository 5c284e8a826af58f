//! Frames that wait to be written, as few pieces of memory.

use std::io::{self, IoSlice};

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::tcp::OwnedWriteHalf,
};

/// Bodies up to this length are copied behind their headers, so that one write sends many frames.
const COPIED_LEN_MAX: usize = 16 * 1024;

/// How much is worth a write of its own while others still make their requests: for messages of
/// 1 KiB the kernel's work for a call is small then beside that for the bytes. Unit: bytes.
const EARLY_LEN: usize = 32 * 1024;

/// Most pieces of one write; the kernel takes 1,024.
const PIECES_MAX: usize = 64;

/// Room that is kept while there is nothing to write. Unit: bytes.
const KEPT_LEN_MAX: usize = 1024 * 1024;

/// Frames in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Headers, and bodies that are not long.
    bytes: Vec<u8>,
    /// Long bodies, each with the place in `bytes` that it stands before.
    long: Vec<(usize, Bytes)>,
    long_len: usize,
}

impl Queue {
    pub(super) const fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.long.is_empty()
    }

    /// All that waits. Unit: bytes.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() + self.long_len
    }

    /// Adds a frame without its first `written` bytes.
    pub(super) fn push(&mut self, head: &[u8], body: &Bytes, written: usize) {
        self.bytes.extend_from_slice(head.get(written..).unwrap_or_default());
        let written = written.saturating_sub(head.len()).min(body.len());
        if !Self::is_long(body) {
            self.bytes.extend_from_slice(body.get(written..).unwrap_or_default());
        } else {
            self.long_len += body.len() - written;
            self.long.push((self.bytes.len(), body.slice(written..)));
        }
    }

    /// Whether a body of this length is not copied.
    pub(super) const fn is_long(body: &Bytes) -> bool {
        COPIED_LEN_MAX < body.len()
    }

    /// Writes a frame as far as the socket takes it now; returns how many bytes that are. What went
    /// wrong shows when the rest is written.
    pub(super) fn try_write(socket: &OwnedWriteHalf, head: &[u8], body: &[u8]) -> usize {
        let pieces = [IoSlice::new(head), IoSlice::new(body)];
        match body.is_empty() {
            true => socket.try_write(head),
            false => socket.try_write_vectored(&pieces),
        }
        .unwrap_or(0)
    }

    /// Whether what waits is worth a write before others have had their turn.
    pub(super) const fn is_due(&self) -> bool {
        EARLY_LEN <= self.bytes.len() && self.long.is_empty()
    }

    /// Writes what the socket takes now of a queue that is due. What went wrong shows when the rest
    /// is written.
    pub(super) fn write_some(&mut self, socket: &OwnedWriteHalf) {
        let written = socket.try_write(&self.bytes).unwrap_or(0);
        self.bytes.drain(..written);
    }

    /// Takes over the frames of another queue, behind its own.
    pub(super) fn append(&mut self, other: &mut Self) {
        let before = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.long.extend(other.long.drain(..).map(|(place, body)| (before + place, body)));
        self.long_len += std::mem::take(&mut other.long_len);
    }

    /// Writes everything and empties the queue.
    pub(super) async fn write_to(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut from = 0;
        for bodies in self.long.chunks(PIECES_MAX / 2) {
            let mut pieces = Vec::with_capacity(2 * bodies.len());
            for (place, body) in bodies {
                pieces.push(IoSlice::new(self.bytes.get(from..*place).unwrap_or_default()));
                pieces.push(IoSlice::new(body));
                from = *place;
            }
            write_all(writer, &mut pieces).await?;
        }
        self.long.clear();
        writer.write_all(self.bytes.get(from..).unwrap_or_default()).await?;
        // TLS holds bytes back until it is told not to; a socket does nothing here.
        writer.flush().await?;
        self.long_len = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_LEN_MAX);
        Ok(())
    }
}

/// Writes all of some pieces.
async fn write_all(
    writer: &mut (impl AsyncWrite + Unpin),
    mut pieces: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Nothing to write would look like a peer that takes nothing.
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match writer.write_vectored(pieces).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut pieces, written),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a queue writes that frames are pushed to.
    async fn written(frames: &[(&[u8], Vec<u8>, usize)]) -> Vec<u8> {
        let (mut queue, mut out) = (Queue::default(), Vec::new());
        for (head, body, written) in frames {
            queue.push(head, &Bytes::from(body.clone()), *written);
        }
        let len = queue.len();
        queue.write_to(&mut out).await.unwrap();
        assert_eq!((queue.is_empty(), queue.long_len, out.len()), (true, 0, len));
        out
    }

    #[tokio::test]
    async fn frames_are_written_in_order_whatever_their_length() {
        let long = vec![b'L'; COPIED_LEN_MAX + 1];
        let frames =
            [(&b"a"[..], long.clone(), 0), (b"b", b"short".to_vec(), 0), (b"c", long.clone(), 0)];
        let want = [b"a", &long[..], b"bshortc", &long[..]].concat();
        assert_eq!(written(&frames).await, want);
    }

    #[tokio::test]
    async fn what_was_written_already_is_left_out() {
        let long = vec![b'L'; COPIED_LEN_MAX + 1];
        assert_eq!(written(&[(b"head", b"body".to_vec(), 2)]).await, b"adbody");
        assert_eq!(written(&[(b"head", b"body".to_vec(), 6)]).await, b"dy");
        assert_eq!(written(&[(b"head", long.clone(), 6)]).await, long[2..]);
    }

    #[tokio::test]
    async fn the_frames_of_another_queue_come_behind_its_own() {
        let long = vec![b'L'; COPIED_LEN_MAX + 1];
        let (mut queue, mut other, mut out) = (Queue::default(), Queue::default(), Vec::new());
        queue.push(b"a", &Bytes::from_static(b"1"), 0);
        other.push(b"b", &Bytes::from(long.clone()), 0);
        other.push(b"c", &Bytes::from_static(b"2"), 0);
        queue.append(&mut other);
        assert!(other.is_empty());
        assert_eq!(queue.len(), 5 + long.len());
        queue.write_to(&mut out).await.unwrap();
        assert_eq!(out, [b"a1b", &long[..], b"c2"].concat());
    }

    #[tokio::test]
    async fn a_socket_that_takes_little_leaves_the_rest_in_order() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sender = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut receiver, _) = listener.accept().await.unwrap();
        let (_reader, writer) = sender.into_split();
        writer.writable().await.unwrap();
        let (mut queue, mut sent) = (Queue::default(), Vec::new());
        // More than the kernel takes without a reader.
        while sent.len() < 32 * 1024 * 1024 {
            let body = Bytes::from(sent.len().to_be_bytes().repeat(2000));
            sent.extend_from_slice(&body);
            queue.push(b"", &body, 0);
            if queue.is_due() {
                queue.write_some(&writer);
            }
        }
        assert!(!queue.is_empty());
        let rest = tokio::spawn(async move {
            let mut writer = writer;
            queue.write_to(&mut writer).await
        });
        let mut received = vec![0; sent.len()];
        tokio::io::AsyncReadExt::read_exact(&mut receiver, &mut received).await.unwrap();
        rest.await.unwrap().unwrap();
        assert!(received == sent);
    }
}
