//! Signatures, TLS, and name servers that come from an address server.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod fake;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fake::{Fake, Seen, ok, route, stored};
use ringmq_client::{Client, Error, Invalid, Message};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const SEND: i32 = 310;
const ROUTE: i32 = 105;

async fn broker() -> Fake {
    Fake::start(|own, seen| match seen.code {
        ROUTE => route(&[("a", own, 1)]),
        SEND => stored(seen),
        _ => ok(),
    })
    .await
}

#[tokio::test]
async fn every_request_is_signed() {
    let fake = broker().await;
    let builder = Client::builder(&fake.addr).credentials("app", "secret").security_token("tok");
    let client = builder.connect().await.unwrap();
    let producer = client.producer("g").start().unwrap();
    producer.send(Message::new("T", "x").tag("a\"b")).await.unwrap();
    fake.wait_for(34, 1).await;
    let signatures: Vec<_> = [ROUTE, 34, SEND]
        .into_iter()
        .map(|code| {
            let seen: Seen = fake.seen(code).remove(0);
            assert_eq!((seen.ext("AccessKey"), seen.ext("SecurityToken")), ("app", "tok"));
            seen.ext("Signature").to_owned()
        })
        .collect();
    // 20 bytes in base64, different for different contents.
    assert!(signatures.iter().all(|text| text.len() == 28 && text.ends_with('=')));
    assert!(signatures[0] != signatures[1] && signatures[1] != signatures[2]);
    assert_eq!(fake.seen(SEND)[0].property("TAGS").as_deref(), Some("a\"b"));
}

/// A page that says what the string says, one connection after the other.
async fn address_server(page: Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let len = stream.read(&mut request).await.unwrap();
            assert!(request.get(..len).unwrap().starts_with(b"GET /rocketmq/nsaddr HTTP/1.0\r\n"));
            let page = page.lock().unwrap().clone();
            stream.write_all(page.as_bytes()).await.unwrap();
        }
    });
    addr
}

#[tokio::test]
async fn name_servers_come_from_the_address_server_and_follow_it() {
    let (first, second) = (broker().await, broker().await);
    let page = |addr: &str| format!("HTTP/1.1 200 OK\r\nServer: x\r\n\r\n{addr}\n");
    let shown = Arc::new(Mutex::new(page(&first.addr)));
    let place = address_server(Arc::clone(&shown)).await;
    let builder = Client::builder("").address_server(&place);
    let client = builder.address_period(Duration::from_millis(10)).connect().await.unwrap();
    client.admin().route("T").await.unwrap();
    assert_eq!(first.seen(ROUTE).len(), 1);
    "HTTP/1.1 500 Oops\r\n\r\n".clone_into(&mut shown.lock().unwrap());
    client.admin().route("T").await.unwrap();
    *shown.lock().unwrap() = page(&second.addr);
    let moved = async {
        while second.seen(ROUTE).is_empty() {
            client.admin().route("T").await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), moved).await.unwrap();
}

#[tokio::test]
async fn an_address_server_that_cannot_be_asked_is_an_error_only_without_a_list() {
    let dead = fake::nobody().await;
    let error = Client::builder("").address_server(&dead).connect().await.unwrap_err();
    assert!(matches!(&error, Error::Connect { addr, .. } if *addr == dead), "{error}");
    let error = Client::builder("").address_server("http://").connect().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(Invalid::AddressServer(_))), "{error}");
    let fake = broker().await;
    let client = Client::builder(&fake.addr).address_server(&dead).connect().await.unwrap();
    client.admin().route("T").await.unwrap();
}

#[cfg(feature = "tls")]
mod tls {
    use ringmq_client::Tls;
    use rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    };
    use tokio::net::TcpStream;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Takes TLS connections and passes their bytes to a plain server.
    async fn front(config: ServerConfig, behind: impl Fn() -> String + Send + 'static) -> String {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, behind) = (acceptor.clone(), behind());
                tokio::spawn(async move {
                    // The client's first connection only asks whether someone is there.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut plain = TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
                });
            }
        });
        addr
    }

    struct Certificate {
        pem: String,
        key_pem: String,
    }

    fn certificate(name: &str) -> Certificate {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Certificate { pem: made.cert.pem(), key_pem: made.signing_key.serialize_pem() }
    }

    fn provider() -> Arc<rustls::crypto::CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    fn server(own: &Certificate, client: Option<&Certificate>) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap();
        let chain = vec![CertificateDer::from_pem_slice(own.pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).unwrap();
        let builder = match client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(client.pem.as_bytes()).unwrap()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        builder.with_single_cert(chain, key).unwrap()
    }

    /// A broker behind TLS: its place, and what it saw.
    async fn secured(own: &Certificate, client: Option<&Certificate>) -> (String, Fake) {
        let place = Arc::new(Mutex::new(String::new()));
        let own_place = Arc::clone(&place);
        let fake = Fake::start(move |_, seen| match seen.code {
            ROUTE => route(&[("a", &own_place.lock().unwrap(), 1)]),
            SEND => stored(seen),
            _ => ok(),
        })
        .await;
        let behind = fake.addr.clone();
        let addr = front(server(own, client), move || behind.clone()).await;
        (*place.lock().unwrap()).clone_from(&addr);
        (addr, fake)
    }

    async fn send(addr: &str, tls: Tls, body: Vec<u8>) -> Result<(), Error> {
        let client = Client::builder(addr).tls(tls).connect().await?;
        let producer = client.producer("g").compression(None).start()?;
        producer.send(Message::new("T", body)).await.map(drop)
    }

    #[tokio::test]
    async fn messages_go_through_tls_to_a_server_that_is_trusted() {
        let own = certificate("broker.example");
        let (addr, fake) = secured(&own, None).await;
        let trusting = Tls::trusting(own.pem.as_bytes()).unwrap().server_name("broker.example");
        for len in [1, 1_000_000] {
            send(&addr, trusting.clone(), vec![7; len]).await.unwrap();
            assert_eq!(fake.seen(SEND).last().unwrap().body.len(), len);
        }
        send(&addr, Tls::trusting_everybody().unwrap(), vec![7]).await.unwrap();

        let wrong_name = Tls::trusting(own.pem.as_bytes()).unwrap();
        let stranger = Tls::trusting(certificate("broker.example").pem.as_bytes()).unwrap();
        for tls in [wrong_name, stranger.server_name("broker.example")] {
            let error = send(&addr, tls, vec![7]).await.unwrap_err();
            assert!(matches!(error, Error::Connect { .. }), "{error}");
        }
        assert!(Tls::trusting(b"no certificate").is_err());
    }

    #[tokio::test]
    async fn a_client_shows_its_certificate() {
        let (own, client) = (certificate("broker.example"), certificate("client"));
        let (addr, fake) = secured(&own, Some(&client)).await;
        let [ca, chain, key] = [&own.pem, &client.pem, &client.key_pem].map(|pem| pem.as_bytes());
        let known = Tls::with_identity(ca, chain, key).unwrap().server_name("broker.example");
        send(&addr, known, vec![7]).await.unwrap();
        let unknown = Tls::trusting(ca).unwrap().server_name("broker.example");
        assert!(send(&addr, unknown, vec![7]).await.is_err());
        assert_eq!(fake.seen(SEND).len(), 1);
    }
}
