//! Name servers: a list that may change, and the one of it that is in use.
//!
//! The list is given, or comes from an address server: an HTTP page with one line
//! `host:port;host:port`, which is asked again every two minutes.
//!
//! Source: Apache RocketMQ 4.9.8, `NettyRemotingClient.updateNameServerAddressList`, `TopAddressing`.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{Invalid, clock, lock, unique};

/// Longest answer of an address server that is read. Unit: bytes.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// How long an address server may take. Source: `TopAddressing.fetchNSAddr`.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Port of an address server that names none.
const PORT: u16 = 8080;

/// Path of an address server that names none.
const PATH: &str = "/rocketmq/nsaddr";

/// The name servers of a client.
#[derive(Debug)]
pub(super) struct NameServers {
    list: Mutex<Arc<[String]>>,
    /// Index into `list` of the one in use. Racy updates do no harm: any index is as good.
    at: AtomicUsize,
}

impl NameServers {
    pub(super) fn new(list: Vec<String>, at: usize) -> Self {
        Self { list: Mutex::new(list.into()), at: AtomicUsize::new(at) }
    }

    pub(super) fn all(&self) -> Arc<[String]> {
        Arc::clone(&lock(&self.list))
    }

    pub(super) fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// Uses the one with this index from now on.
    pub(super) fn stay_at(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    /// Puts another list in place. The one in use stays in use if the list still has it; otherwise
    /// any takes its place, so that not all clients turn to the first one.
    pub(super) fn replace(&self, servers: Vec<String>) {
        let mut list = lock(&self.list);
        let mut sorted = (list.to_vec(), servers.clone());
        sorted.0.sort_unstable();
        sorted.1.sort_unstable();
        if servers.is_empty() || sorted.0 == sorted.1 {
            return;
        }
        let current = list.get(self.at());
        let kept = servers.iter().position(|server| Some(server) == current);
        let any = usize::try_from(unique::random() >> 33).unwrap_or_default();
        let at = kept.unwrap_or_else(|| any.checked_rem(servers.len()).unwrap_or_default());
        tracing::info!(?servers, "name servers changed");
        *list = servers.into();
        self.stay_at(at);
    }
}

/// Reads a list `host:port;host:port`.
pub(super) fn parse(text: &str) -> Result<Vec<String>, Invalid> {
    let parts = text.split([';', ',']).map(str::trim).filter(|part| !part.is_empty());
    let servers: Vec<_> = parts.map(String::from).collect();
    let is_addr = |addr: &String| {
        addr.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
    };
    if servers.is_empty() || !servers.iter().all(is_addr) {
        return Err(Invalid::NameServers(text.into()));
    }
    Ok(servers)
}

/// Where to ask for name servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressServer {
    host: String,
    port: u16,
    path: String,
}

impl AddressServer {
    /// Reads `host`, `host:port` or `http://host:port/path`; what is left out is upstream's.
    ///
    /// # Errors
    ///
    /// [`Invalid::AddressServer`].
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::AddressServer(text.into());
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (place, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, PATH),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| invalid())?),
            None => (place, PORT),
        };
        let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !is_plain(host) || !is_plain(path) {
            return Err(invalid());
        }
        Ok(Self { host: host.into(), port, path: path.into() })
    }

    /// Asks for the list.
    ///
    /// # Errors
    ///
    /// Why there is no answer, or it is none.
    pub(super) async fn fetch(&self) -> io::Result<Vec<String>> {
        let answer = timeout(FETCH_TIMEOUT, self.get()).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let list = read_answer(&answer).ok_or_else(|| io::Error::other("no list of servers"))?;
        parse(list).map_err(io::Error::other)
    }

    /// Version 1.0, so that the answer comes in one piece and ends with the connection.
    async fn get(&self) -> io::Result<Vec<u8>> {
        let Self { host, port, path } = self;
        let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
        let now = clock::epoch_ms();
        let request = format!(
            "GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: */*\r\n\
             Metaq-Client-RequestTS: {now}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LEN_MAX).read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

/// The first line of an answer's body, if the answer is a success.
fn read_answer(answer: &[u8]) -> Option<&str> {
    let (head, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    let is_success = head.split_whitespace().nth(1) == Some("200");
    body.trim_start().lines().next().filter(|_| is_success).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_server_lists_are_checked() {
        let two = parse(" 10.0.0.1:9876; ns.example:1 ;").unwrap();
        assert_eq!(two, ["10.0.0.1:9876", "ns.example:1"]);
        for bad in ["", ";", "host", "host:", ":9876", "host:0", "host:65536", "a:1;b"] {
            assert_eq!(parse(bad), Err(Invalid::NameServers(bad.into())));
        }
    }

    #[test]
    fn the_server_in_use_stays_while_the_list_has_it() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let servers = NameServers::new(list(&["a:1", "b:1"]), 1);
        servers.replace(list(&["c:1", "d:1", "b:1"]));
        assert_eq!((servers.at(), servers.all().len()), (2, 3));
        servers.replace(list(&["b:1", "c:1", "d:1"]));
        assert_eq!(servers.all()[servers.at()], "b:1", "the same list in another order");
        servers.replace(list(&["x:1"]));
        assert_eq!((servers.at(), &*servers.all()), (0, &list(&["x:1"])[..]));
        servers.replace(Vec::new());
        assert_eq!(servers.all().len(), 1, "no list is no news");
    }

    #[track_caller]
    fn check(text: &str, want: Option<(&str, u16, &str)>) {
        let want = want
            .map(|(host, port, path)| AddressServer { host: host.into(), port, path: path.into() })
            .ok_or_else(|| Invalid::AddressServer(text.into()));
        assert_eq!(AddressServer::parse(text), want);
    }

    #[test]
    fn address_servers_have_upstreams_defaults() {
        check("jmenv.example", Some(("jmenv.example", 8080, "/rocketmq/nsaddr")));
        check("10.0.0.1:80", Some(("10.0.0.1", 80, "/rocketmq/nsaddr")));
        check("http://h:8081/x/y?z=1", Some(("h", 8081, "/x/y?z=1")));
        for bad in ["", "http://", ":80", "h:x", "h/a b", "h/a\r\nX: y"] {
            check(bad, None);
        }
    }

    #[test]
    fn only_a_success_is_an_answer() {
        let ok = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n 10.0.0.1:9876;10.0.0.2:9876 \nmore\n";
        assert_eq!(read_answer(ok), Some("10.0.0.1:9876;10.0.0.2:9876"));
        for bad in [&b"HTTP/1.1 404 Not Found\r\n\r\nh:1"[..], b"HTTP/1.1 200 OK", b"", b"\xff"] {
            assert_eq!(read_answer(bad), None);
        }
    }
}
