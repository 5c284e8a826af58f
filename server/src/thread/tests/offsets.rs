use super::*;

fn stored(client: &mut Client, group: &str, queue: i32) -> Got {
    client.offset(request::QUERY_CONSUMER_OFFSET, group, "T", queue)
}

#[test]
fn an_offset_is_told_as_it_was_stored_and_survives_a_restart() {
    let folder = Folder::new();
    {
        let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
        let mut client = broker.client();
        for queue in 0..2 {
            client.commit("CG", "T", queue, 5).ok();
            assert_eq!(stored(&mut client, "CG", queue).ok().number("offset"), 5);
            client.commit_oneway("CG", "T", queue, 8);
            assert_eq!(stored(&mut client, "CG", queue).ok().number("offset"), 8);
            client.commit("CG", "T", queue, 3).ok();
            assert_eq!(
                stored(&mut client, "CG", queue).ok().number("offset"),
                3,
                "back by request"
            );
            client.commit("CG", "T", queue, 3).ok();
        }
    }
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        assert_eq!(stored(&mut client, "CG", queue).ok().number("offset"), 3);
    }
}

#[test]
fn a_group_without_offset_starts_at_the_first_message() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        assert_eq!(stored(&mut client, "New", queue).ok().number("offset"), 0);
        client.commit("Negative", "T", queue, -5).ok();
        assert_eq!(stored(&mut client, "Negative", queue).ok().number("offset"), 0);
        client.version = 479;
        assert_eq!(stored(&mut client, "New", queue).code, 22, "5.x tells an empty queue apart");
        client.send("T", queue, "", b"x").ok();
        assert_eq!(stored(&mut client, "New", queue).ok().number("offset"), 0);
        let no_guess = |ext: &mut encode::FrameWriter<'_, '_>| {
            offset_ext(ext, "New", "T", queue, None);
            ext.ext("setZeroIfNotFound", "false");
        };
        assert_eq!(client.call(request::QUERY_CONSUMER_OFFSET, no_guess, &[]).code, 22);
        client.version = 409;
    }
}

#[test]
fn names_that_are_none_are_refused() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &[]).with_topic("T", 1);
    let mut client = broker.client();
    assert_eq!(client.commit("../g", "T", 0, 1).code, 1);
    assert_eq!(client.commit("g", "../T", 0, 1).code, 1);
    assert_eq!(client.commit(&"g".repeat(256), "T", 0, 1).code, 1);
    client.version = 479;
    assert_eq!(client.commit("Unknown", "T", 0, 1).code, 26);
}

#[test]
fn the_ends_of_a_queue_and_its_times_are_found() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    for queue in 0..2 {
        let mut number = |code, name: &str| client.offset(code, "", "T", queue).ok().number(name);
        assert_eq!(number(request::GET_MAX_OFFSET, "offset"), 0);
        assert_eq!(number(request::GET_MIN_OFFSET, "offset"), 0);
        assert_eq!(number(request::GET_EARLIEST_MSG_STORETIME, "timestamp"), -1);
        for _ in 0..3 {
            client.send("T", queue, "", b"x").ok();
        }
        let times: Vec<_> = client
            .pull("T", queue, 0)
            .messages()
            .iter()
            .map(|message| message.store_timestamp_ms)
            .collect();
        let mut number = |code, name: &str| client.offset(code, "", "T", queue).ok().number(name);
        assert_eq!(number(request::GET_MAX_OFFSET, "offset"), 3);
        assert_eq!(number(request::GET_MIN_OFFSET, "offset"), 0);
        assert_eq!(number(request::GET_EARLIEST_MSG_STORETIME, "timestamp"), times[0]);
        let mut search = |time: i64, boundary: &str| {
            let ext = |ext: &mut encode::FrameWriter<'_, '_>| {
                offset_ext(ext, "", "T", queue, None);
                ext.ext_int("timestamp", time);
                ext.ext("boundaryType", boundary);
            };
            client.call(request::SEARCH_OFFSET_BY_TIMESTAMP, ext, &[]).ok().number("offset")
        };
        assert_eq!(search(0, "LOWER"), 0);
        assert_eq!(search(times[0], "LOWER"), 0);
        assert_eq!(search(times[2] + 1, "LOWER"), 3);
        assert_eq!(search(0, "UPPER"), 0);
        assert_eq!(search(times[2], "UPPER"), 2);
        assert_eq!(search(i64::MAX, "UPPER"), 2);
    }
    assert_eq!(client.offset(request::GET_MAX_OFFSET, "", "Unknown", 9).ok().number("offset"), 0);
}

#[test]
fn positions_that_are_no_record_give_nothing() {
    let folder = Folder::new();
    let broker = Broker::start(&folder.0, &["--shards", "2"]).with_topic("T", 2);
    let mut client = broker.client();
    client.send("T", 0, "", b"x").ok();
    let offset = client.pull("T", 0, 0).ok().messages()[0].log_offset;
    for position in [offset + 1, offset - 1, 0, -1, i64::MAX, 1 << 50] {
        let view = |ext: &mut encode::FrameWriter<'_, '_>| ext.ext_int("offset", position);
        assert_eq!(client.call(request::VIEW_MESSAGE_BY_ID, view, &[]).code, 1, "{position}");
    }
}
