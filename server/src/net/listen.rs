//! Listening sockets.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use crate::clock;

/// How long a start goes on trying where a process that was killed may not be gone yet.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// Pause between two tries.
pub(crate) const RETRY_STEP: Duration = Duration::from_millis(50);

/// Binds a listening socket, without `SO_REUSEPORT`: with it a second process could bind the same
/// port and take connections away.
///
/// # Errors
///
/// Those of the socket. A port that is in use is tried for as long as `patience`, mostly [`RETRY`],
/// since the rings of a process that was killed hold their sockets for a moment.
pub(crate) fn listen(address: SocketAddr, patience: Duration) -> io::Result<TcpListener> {
    /// A process that was killed is usually gone by then.
    const SILENT: Duration = Duration::from_millis(500);
    let start = clock::instant();
    let mut told = false;
    loop {
        match try_bind(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < patience =>
            {
                if !told && start.elapsed() >= SILENT {
                    told = true;
                    tracing::info!("{address} is in use; waiting for it, {patience:?} at most");
                }
                clock::pause(RETRY_STEP);
            }
            result => return result,
        }
    }
}

fn try_bind(address: SocketAddr) -> io::Result<TcpListener> {
    const BACKLOG: i32 = 4096;
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    // Connections of an earlier process that linger do not count as a user of the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
