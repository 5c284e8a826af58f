use super::*;

/// Sends and pulls to all shards; every one must be answered.
fn exercise(mut client: Client, rounds: usize) {
    for round in 0..rounds {
        for queue in 0..8 {
            let body = vec![u8::try_from(queue).unwrap(); 100 + round];
            let sent = client.send("T", queue, "", &body).ok();
            let got = client.pull("T", queue, sent.number("queueOffset")).ok();
            assert_eq!(got.messages()[0].body[0], u8::try_from(queue).unwrap());
            client.commit("CG", "T", queue, sent.number("queueOffset")).ok();
        }
    }
}

#[test]
fn connections_that_do_not_read_starve_nobody() {
    let folder = Folder::new();
    let tight = |config: &mut BrokerConfig| {
        config.limits.link_entries = 2;
        config.limits.conn_output_bytes = 64 << 10;
    };
    let broker = Broker::start_with(&folder.0, &["--shards", "4", "--threads", "2"], tight)
        .with_topic("T", 8);
    let mut producer = broker.client();
    for queue in 0..8 {
        for _ in 0..8 {
            producer.send("T", queue, "", &vec![9; 30_000]).ok();
        }
    }
    // Each asks for far more than its socket and its budget take, and never reads.
    let silent: Vec<_> = (0..32)
        .map(|number| {
            let mut client = broker.client();
            let mut bytes = Vec::new();
            for turn in 0..200 {
                let header = pull_header("T", (number + turn) % 8, 0);
                let code = request::PULL_MESSAGE;
                bytes.extend(client.frame(code, 0, |ext| header.encode(ext), &[]).1);
            }
            client.stream.set_nonblocking(true).unwrap();
            // What the broker does not take stays here: it stops reading such connections.
            let _ = client.stream.write(&bytes);
            client
        })
        .collect();
    let busy: Vec<_> = (0..32)
        .map(|_| {
            let client = broker.client();
            std::thread::spawn(move || exercise(client, 5))
        })
        .collect();
    for thread in busy {
        thread.join().expect("a request was not answered");
    }
    drop(silent);
}

#[test]
fn a_connection_that_takes_no_answers_is_closed_in_time() {
    let folder = Folder::new();
    let impatient = |config: &mut BrokerConfig| {
        config.limits.write_timeout = Duration::from_millis(500);
    };
    let broker = Broker::start_with(&folder.0, &[], impatient).with_topic("T", 1);
    let mut client = broker.client();
    for _ in 0..8 {
        client.send("T", 0, "", &vec![9; 250_000]).ok();
    }
    let mut bytes = Vec::new();
    for _ in 0..100 {
        let header = pull_header("T", 0, 0);
        bytes.extend(client.frame(request::PULL_MESSAGE, 0, |ext| header.encode(ext), &[]).1);
    }
    client.stream.write_all(&bytes).unwrap();
    // The broker gives up on this side; a byte sent then is answered with a reset.
    let mut closed = false;
    for _ in 0..200 {
        closed = client.stream.write_all(&[0]).is_err();
        if closed {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert!(closed, "the connection is still open");
    broker.client().send("T", 0, "", b"x").ok();
}
