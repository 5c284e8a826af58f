//! A connected socket, plain or inside TLS, in two halves.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

#[cfg(feature = "tls")]
use tokio::io::{ReadHalf, WriteHalf};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;

/// A connected socket.
pub(super) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

/// The half that bytes come from.
pub(super) enum Reader {
    Plain(OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(ReadHalf<TlsStream<TcpStream>>),
}

/// The half that bytes go to. A plain one can be shared with those who try to write without waiting.
pub(super) enum Writer {
    Plain(Arc<OwnedWriteHalf>),
    #[cfg(feature = "tls")]
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl Stream {
    /// The halves, and the socket for those who write without waiting, if it is a plain one.
    pub(super) fn split(self) -> (Reader, Writer, Option<Arc<OwnedWriteHalf>>) {
        match self {
            Self::Plain(stream) => {
                let (reader, writer) = stream.into_split();
                let writer = Arc::new(writer);
                (Reader::Plain(reader), Writer::Plain(Arc::clone(&writer)), Some(writer))
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                let (reader, writer) = tokio::io::split(*stream);
                (Reader::Tls(reader), Writer::Tls(writer), None)
            }
        }
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_read(context, buffer),
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => loop {
                match half.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(half.as_ref().as_ref().poll_write_ready(context))?;
                    }
                    written => return Poll::Ready(written),
                }
            },
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => loop {
                match half.try_write_vectored(pieces) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready!(half.as_ref().as_ref().poll_write_ready(context))?;
                    }
                    written => return Poll::Ready(written),
                }
            },
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(half) => half.is_write_vectored(),
        }
    }

    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "only TLS has to wait"))]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_flush(context),
        }
    }

    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "only TLS has to wait"))]
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // The last one who has the half shuts it down by dropping it.
            Self::Plain(_) => Poll::Ready(Ok(())),
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_shutdown(context),
        }
    }
}
