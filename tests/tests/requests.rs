//! Requests that nobody expects, and pulls that wait.

#![allow(clippy::unwrap_used, reason = "an error here is a failed test")]

use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
};

use ringmq_protocol::{
    codes::{
        request::{GET_MAX_OFFSET, GET_ROUTEINFO_BY_TOPIC},
        response::{PULL_NOT_FOUND, REQUEST_CODE_NOT_SUPPORTED, SUCCESS},
    },
    frame::Encoding,
};
use ringmq_tests::{
    client::Client,
    folder::Folder,
    messages::{Pull, create_topic, max_offset, send, stored_in},
    server::{Ringmq, Settings},
    wait::timed,
};

/// Codes that no version of the protocol defines.
const UNKNOWN_CODES: [i32; 4] = [0, 999, 30_000, -1];

fn server(name: &str) -> (Folder, Ringmq) {
    let folder = Folder::new(name);
    let server = Ringmq::start(&Settings::new(&folder.path().join("data")));
    (folder, server)
}

/// The addresses that take requests.
fn addresses(server: &Ringmq) -> [SocketAddr; 2] {
    [server.broker(), server.namesrv()]
}

#[test]
fn an_unknown_code_is_answered_with_3() {
    let (_folder, server) = server("unknown");
    for address in addresses(&server) {
        for encoding in [Encoding::Json, Encoding::Binary] {
            let mut client = Client::connect(address).unwrap().with_encoding(encoding);
            for code in UNKNOWN_CODES {
                let reply = client.call(code, |_| {}, b"body").unwrap();
                assert_eq!(reply.code, REQUEST_CODE_NOT_SUPPORTED, "code {code} at {address}");
            }
        }
    }
}

#[test]
fn an_unknown_oneway_is_not_answered() {
    let (_folder, server) = server("oneway");
    for address in addresses(&server) {
        let mut client = Client::connect(address).unwrap();
        for code in UNKNOWN_CODES {
            client.post_oneway(code, |_| {}, &[]).unwrap();
        }
        // Answers of one connection to requests of the same kind come in order, so the next one
        // being for the last request means that the oneways got none.
        let reply = client.call(999, |_| {}, &[]).unwrap();
        assert_eq!(reply.code, REQUEST_CODE_NOT_SUPPORTED);
    }
}

#[test]
fn a_malformed_frame_closes_only_its_own_connection() {
    let (_folder, mut server) = server("malformed");
    let malformed: [&[u8]; 6] = [
        &i32::MAX.to_be_bytes(),
        &(-1i32).to_be_bytes(),
        // A header longer than the frame.
        &[0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0],
        // An encoding that does not exist.
        &[0, 0, 0, 6, 7, 0, 0, 2, b'{', b'}'],
        // A header that is no JSON.
        &[0, 0, 0, 6, 0, 0, 0, 2, b'{', b'{'],
        // A binary header that ends early.
        &[0, 0, 0, 6, 1, 0, 0, 2, 0, 10],
    ];
    for address in addresses(&server) {
        let mut healthy = Client::connect(address).unwrap();
        for bytes in malformed {
            let mut client = Client::connect(address).unwrap();
            client.stream().write_all(bytes).unwrap();
            let mut rest = Vec::new();
            match client.stream().read_to_end(&mut rest) {
                Ok(_) => assert!(rest.is_empty(), "answered {bytes:02x?}: {rest:02x?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{bytes:02x?}"),
            }
            let reply = healthy.call(999, |_| {}, &[]).unwrap();
            assert_eq!(reply.code, REQUEST_CODE_NOT_SUPPORTED, "after {bytes:02x?}");
        }
    }
    assert!(server.runs());
}

#[test]
fn missing_header_fields_are_errors_and_no_silence() {
    let (_folder, server) = server("fields");
    let mut client = Client::connect(server.broker()).unwrap();
    let reply = client.call(GET_MAX_OFFSET, |_| {}, &[]).unwrap();
    assert_ne!(reply.code, SUCCESS);
    let mut client = Client::connect(server.namesrv()).unwrap();
    let reply = client.call(GET_ROUTEINFO_BY_TOPIC, |_| {}, &[]).unwrap();
    assert_ne!(reply.code, SUCCESS);
}

#[test]
fn a_held_pull_is_woken_by_the_message_that_it_waits_for() {
    let (_folder, server) = server("held");
    let mut producer = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut producer, "held", 1).unwrap().code, SUCCESS);
    let mut plain = Client::connect(server.broker()).unwrap();
    let mut filtered = Client::connect(server.broker()).unwrap();
    let pull = Pull { topic: "held", queue: 0, offset: 0, tags: "*", hold_ms: 20_000 };
    for round in 0..20 {
        let offset = max_offset(&mut producer, "held", 0).unwrap();
        assert_eq!(offset, round);
        let one = Pull { offset, ..pull }.post(&mut plain).unwrap();
        let two = Pull { offset, tags: "A || B", ..pull }.post(&mut filtered).unwrap();
        let key = format!("key-{round}");
        let sent = send(&mut producer, "held", 0, &key, b"body").unwrap();
        assert_eq!(sent.code, SUCCESS);
        for (client, opaque) in [(&mut plain, one), (&mut filtered, two)] {
            let reply = client.reply().unwrap();
            assert_eq!((reply.code, reply.opaque), (SUCCESS, opaque));
            let keys: Vec<_> = stored_in(&reply.body).into_iter().map(|m| m.key).collect();
            assert_eq!(keys, [key.as_str()]);
        }
    }
}

#[test]
fn a_held_pull_without_a_message_ends_with_its_time() {
    let (_folder, server) = server("held-in-vain");
    let mut producer = Client::connect(server.broker()).unwrap();
    assert_eq!(create_topic(&mut producer, "in-vain", 1).unwrap().code, SUCCESS);
    let mut client = Client::connect(server.broker()).unwrap();
    let pull = Pull { topic: "in-vain", queue: 0, offset: 0, tags: "*", hold_ms: 500 };
    let (reply, held) = timed(|| {
        pull.post(&mut client).unwrap();
        client.reply().unwrap()
    });
    assert_eq!(reply.code, PULL_NOT_FOUND);
    assert_eq!(reply.number("nextBeginOffset"), 0);
    assert!(held.as_millis() >= 500, "held for {held:?}");
}
