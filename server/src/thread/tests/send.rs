use super::*;

#[test]
fn a_sent_message_is_pulled_as_it_was_sent() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 4);
    for encoding in [Encoding::Json, Encoding::Binary] {
        let mut client = broker.client();
        client.encoding = encoding;
        let sent =
            client.send("T", 2, "TAGS\u{1}a\u{2}WAIT\u{1}true\u{2}KEYS\u{1}k", b"hello").ok();
        assert_eq!(sent.number("queueId"), 2);
        assert_eq!(sent.ext["MSG_REGION"], "DefaultRegion");
        assert_eq!(sent.ext["TRACE_ON"], "true");
        assert_eq!(sent.remark, "");
        let offset = sent.number("queueOffset");
        let got = client.pull("T", 2, offset).ok();
        assert_eq!(got.remark, "FOUND");
        assert_eq!(got.number("nextBeginOffset"), offset + 1);
        assert_eq!(got.number("maxOffset"), offset + 1);
        assert_eq!(got.number("minOffset"), 0);
        assert_eq!(got.number("suggestWhichBrokerId"), 0);
        let messages = got.messages();
        assert_eq!(messages.len(), 1);
        let message = &messages[0];
        assert_eq!((message.body, message.topic, message.flag), (&b"hello"[..], &b"T"[..], 5));
        assert_eq!((message.queue_id, message.queue_offset), (2, offset));
        assert_eq!(message.born_timestamp_ms, 1_700_000_000_000);
        assert_eq!(message.born_host, client.stream.local_addr().unwrap());
        assert_eq!(message.store_host, broker.addr);
        assert_eq!(message.offset_message_id().to_string(), sent.ext["msgId"]);
        assert!(message.body_is_intact());
        assert_eq!(message.property("TAGS"), Some(&b"a"[..]));
        assert_eq!(message.property("KEYS"), Some(&b"k"[..]));
        assert_eq!(message.property("CLUSTER"), Some(&b"DefaultCluster"[..]));
        assert_eq!(message.property("WAIT"), None);
        let view = |ext: &mut encode::FrameWriter<'_, '_>| {
            ext.ext_int("offset", message.log_offset);
        };
        let viewed = client.call(request::VIEW_MESSAGE_BY_ID, view, &[]).ok();
        assert_eq!(viewed.body, message.bytes);
    }
}

#[test]
fn the_long_header_names_mean_the_same() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    let header = send_header("T", 0, "");
    let sent = client.call(request::SEND_MESSAGE, |ext| header.encode(10, ext), b"x").ok();
    assert_eq!(sent.number("queueOffset"), 0);
}

#[test]
fn many_sends_of_one_write_are_all_answered_in_dense_order() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "4"]).with_topic("T", 4);
    let mut client = broker.client();
    let mut bytes = Vec::new();
    for number in 0..400_u32 {
        let header = send_header("T", (number % 4).cast_signed(), "TAGS\u{1}t");
        let body = number.to_be_bytes();
        let (_, frame) = client.frame(310, 0, |ext| header.encode(310, ext), &body);
        bytes.extend(frame);
    }
    client.stream.write_all(&bytes).unwrap();
    let mut offsets = vec![Vec::new(); 4];
    for _ in 0..400 {
        let sent = client.get().ok();
        let queue = usize::try_from(sent.number("queueId")).unwrap();
        offsets[queue].push(sent.number("queueOffset"));
    }
    for of_queue in &mut offsets {
        of_queue.sort_unstable();
        assert_eq!(*of_queue, (0..100).collect::<Vec<_>>());
    }
    for queue in 0..4 {
        let mut from = 0;
        while from < 100 {
            let got = client.pull("T", queue, from).ok();
            for message in got.messages() {
                let number = u32::from_be_bytes(message.body.try_into().unwrap());
                assert_eq!(i64::from(number), message.queue_offset * 4 + i64::from(queue));
            }
            assert!(got.messages().len() <= 32);
            from = got.number("nextBeginOffset");
        }
    }
}

#[test]
fn a_batch_is_stored_as_its_messages() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        let mut body = Vec::new();
        for (flag, text, properties) in
            [(1, "one", "UNIQ_KEY\u{1}u1"), (2, "two", "TAGS\u{1}b\u{2}"), (3, "three", "")]
        {
            let item = ringmq_protocol::batch::Item {
                flag,
                body: text.as_bytes(),
                properties: properties.as_bytes(),
            };
            ringmq_protocol::batch::append(&mut body, &item).unwrap();
        }
        let header = send_header("T", queue, "UNIQ_KEY\u{1}batch\u{2}WAIT\u{1}true");
        let sent = client.call(320, |ext| header.encode(320, ext), &body).ok();
        assert_eq!(sent.number("queueOffset"), 0);
        let ids: Vec<_> = sent.ext["msgId"].split(',').map(str::to_owned).collect();
        let got = client.pull("T", queue, 0).ok();
        let messages = got.messages();
        let bodies: Vec<_> = messages.iter().map(|message| (message.flag, message.body)).collect();
        assert_eq!(bodies, [(1, &b"one"[..]), (2, b"two"), (3, b"three")]);
        let found: Vec<_> =
            messages.iter().map(|message| message.offset_message_id().to_string()).collect();
        assert_eq!(found, ids);
        // The item's own property counts, the header's fills in.
        assert_eq!(messages[0].property("UNIQ_KEY"), Some(&b"u1"[..]));
        assert_eq!(messages[1].property("UNIQ_KEY"), Some(&b"batch"[..]));
        assert_eq!(messages[2].property("CLUSTER"), Some(&b"DefaultCluster"[..]));
    }
}

#[test]
fn a_batch_of_which_one_message_would_wait_is_refused_whole() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    let header = send_header("T", 0, "");
    for (waits, code) in [
        ("DELAY\u{1}3", response::MESSAGE_ILLEGAL),
        ("TRAN_MSG\u{1}true", response::MESSAGE_ILLEGAL),
        ("DELAY\u{1}0", response::SUCCESS),
    ] {
        let mut body = Vec::new();
        for properties in ["", waits] {
            let properties = properties.as_bytes();
            let item = ringmq_protocol::batch::Item { flag: 0, body: b"x", properties };
            ringmq_protocol::batch::append(&mut body, &item).unwrap();
        }
        let sent = client.call(320, |ext| header.encode(320, ext), &body);
        assert_eq!(sent.code, code, "{waits}: {}", sent.remark);
    }
    assert_eq!(client.pull("T", 0, 0).ok().messages().len(), 2, "those of the last one");
}

#[track_caller]
fn check(client: &mut Client, header: &SendRequest<'_>, code: i32, body: &[u8], want: i32) {
    let got = client.call(code, |ext| header.encode(code, ext), body);
    assert_eq!(got.code, want, "{got:?}");
    if want != 0 {
        assert_ne!(got.remark, "");
    }
    assert_eq!(got.ext["MSG_REGION"], "DefaultRegion", "also on errors");
}

#[test]
fn what_may_not_be_sent_is_refused_with_upstreams_codes() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 2);
    let mut client = broker.client();
    let long = "t".repeat(128);
    for topic in ["", "../x", "a b", "a/b", &long] {
        check(&mut client, &send_header(topic, 0, ""), 310, b"x", 1);
    }
    check(&mut client, &send_header("SCHEDULE_TOPIC_XXXX", 0, ""), 310, b"x", 16);
    check(&mut client, &send_header("RefusedTopic", 0, ""), 310, b"x", 17);
    check(&mut client, &send_header("%RETRY%RefusedGroup", 0, ""), 310, b"x", 26);
    check(&mut client, &send_header("T", 2, ""), 310, b"x", 1);
    check(&mut client, &send_header("T", 0, "DELAY\u{1}3"), 310, b"x", 1);
    check(&mut client, &send_header("T", 0, "DELAY\u{1}x"), 310, b"x", 1);
    check(&mut client, &send_header("T", 0, "TRAN_MSG\u{1}true"), 310, b"x", 1);
    check(&mut client, &send_header("T", 0, "DELAY\u{1}3"), 320, b"x", 13);
    check(&mut client, &send_header("T", 0, ""), 320, b"cut", 1);
    check(&mut client, &send_header("T", 0, ""), 320, b"", 1);
    let properties = format!("k\u{1}{}", "v".repeat(32_767));
    check(&mut client, &send_header("T", 0, &properties), 310, b"x", 13);
    check(&mut client, &send_header("T", 0, "DELAY\u{1}0"), 310, b"x", 0);
    let mut transactional = send_header("T", 0, "");
    transactional.sys_flag = 4;
    check(&mut client, &transactional, 320, b"x", 13);
    client.version = 479;
    check(&mut client, &send_header("../x", 0, ""), 310, b"x", 29);
    check(&mut client, &send_header("T", 2, ""), 310, b"x", 29);
    let missing = client.call(310, |ext| ext.ext("b", "T"), b"x");
    assert_eq!(missing.code, 1, "{missing:?}");
}

#[test]
fn client_flags_that_would_hide_a_message_are_cleared() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    let mut header = send_header("T", 0, "");
    header.sys_flag = 0x7ff & !0xc | 0xc;
    client.call(310, |ext| header.encode(310, ext), b"x").ok();
    let got = client.pull("T", 0, 0).ok();
    assert_eq!(got.messages()[0].sys_flag, 0x703);
    assert_eq!(got.messages()[0].body, b"x");
}

#[test]
fn the_largest_body_is_stored_and_one_byte_more_is_not() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        let body = vec![7; 4 << 20];
        let sent = client.send("T", queue, "", &body).ok();
        assert_eq!(sent.number("queueOffset"), 0);
        let got = client.pull("T", queue, 0).ok();
        assert_eq!(got.messages()[0].body, body);
        let more = vec![7; (4 << 20) + 1];
        assert_eq!(client.send("T", queue, "", &more).code, 13);
        let mut batch = Vec::new();
        let item =
            |len| ringmq_protocol::batch::Item { flag: 0, body: &more[..len], properties: b"" };
        for _ in 0..4 {
            let len = (1 << 20) - ringmq_protocol::batch::ITEM_OVERHEAD;
            ringmq_protocol::batch::append(&mut batch, &item(len)).unwrap();
        }
        let header = send_header("T", queue, "");
        let sent = client.call(320, |ext| header.encode(320, ext), &batch).ok();
        assert_eq!(sent.ext["msgId"].split(',').count(), 4);
        batch.push(0);
        let sent = client.call(320, |ext| header.encode(320, ext), &batch);
        assert_eq!(sent.code, 13, "{}", sent.remark);
    }
}

#[test]
fn a_missing_topic_is_created_while_its_message_waits() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]);
    let mut client = broker.client();
    for number in 0..5 {
        let topic = format!("New{number}");
        client.send(&topic, 3, "", b"x").ok();
        assert_eq!(client.pull(&topic, 3, 0).ok().messages().len(), 1);
    }
    client.send("%RETRY%CG", 0, "", b"x").ok();
}

#[test]
fn a_retry_that_was_tried_often_enough_goes_to_the_dead_letters() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]);
    let mut client = broker.client();
    let mut header = send_header("%RETRY%CG", 0, "DELAY\u{1}3");
    header.reconsume_times = 16;
    client.call(310, |ext| header.encode(310, ext), b"dead").ok();
    assert_eq!(client.pull("%DLQ%CG", 0, 0).ok().messages()[0].body, b"dead");
    header.max_reconsume_times = Some(20);
    let got = client.call(310, |ext| header.encode(310, ext), b"not yet");
    assert_eq!(got.code, 1, "it would have to be delayed: {got:?}");
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let folder = Folder::new();
    let mut last = 0;
    for round in 0..3_i64 {
        let broker = Broker::start(&folder.0, &["--threads", "1"]).with_topic("T", 2);
        let mut client = broker.client();
        for queue in 0..2 {
            let sent = client.send("T", queue, "", &round.to_be_bytes()).ok();
            assert_eq!(sent.number("queueOffset"), round);
        }
        let got = client.pull("T", 1, 0).ok();
        let rounds: Vec<_> = got.messages().iter().map(|message| message.body.to_vec()).collect();
        assert_eq!(rounds, (0..=round).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>());
        let first = got.messages()[0].log_offset;
        assert!(round == 0 || first == last, "positions never change");
        last = first;
    }
}

#[test]
fn other_requests_go_to_the_control_plane() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    for code in [34, 9999] {
        client.put(code, |_| (), b"");
    }
    // The control plane has seen them when it has created a topic, which comes behind them.
    client.send("Later", 0, "", b"x").ok();
    let seen: Vec<_> = broker.seen.lock().unwrap().clone().into_iter().collect();
    assert_eq!(seen, [(34, 1), (9999, 1)]);
}

#[test]
fn a_broken_frame_costs_its_own_connection_only() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut healthy = broker.client();
    for bytes in [&[0xff; 64][..], b"GET / HTTP/1.1\r\n\r\n", &[0, 0, 0, 8, 0, 0, 0, 4, 1, 2, 3, 4]]
    {
        let mut broken = broker.client();
        broken.stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        let end = broken.stream.read_to_end(&mut rest);
        assert!(end.is_err() || rest.is_empty(), "closed without an answer");
    }
    healthy.send("T", 0, "", b"x").ok();
}
